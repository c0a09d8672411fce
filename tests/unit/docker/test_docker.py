"""The container files agree with each other and with the package; the images themselves: `make images-test`."""

import importlib.util
import os
import re
import shutil
import subprocess
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "docker"
FILES = [*DOCKER.glob("Dockerfile.*"), *DOCKER.glob("compose*.yml"), DOCKER / "images-test.sh", DOCKER / "README.md"]


def flower_versions(text):
    return set(re.findall(r"FLWR_VERSION(?:=|:-|`\s*\|\s*)(\d+\.\d+\.\d+)", text))


def test_one_flower_version_is_the_default_everywhere_and_one_that_the_package_allows():
    found = set().union(*(flower_versions(file.read_text()) for file in FILES))
    assert len(found) == 1, found
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (flower,) = (r for r in map(Requirement, dependencies) if r.name == "flwr")
    assert flower.specifier.contains(found.pop())


def test_both_images_are_built_in_the_same_way():
    """So that a machine that builds both downloads PyTorch once: engines find equal steps in their cache."""
    builds = [
        [line for line in file.read_text().splitlines() if not line.startswith("#")]
        for file in sorted(DOCKER.glob("Dockerfile.*"))
    ]
    ends = [lines.index("FROM ${BASE}") for lines in builds]
    assert builds[0][: ends[0]] == builds[1][: ends[1]]


def test_what_the_images_copy_is_in_the_build_context():
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for file in DOCKER.glob("Dockerfile.*"):
        for line in file.read_text().splitlines():
            if line.startswith("COPY") and "--from" not in line:
                for source in line.split()[1:-1]:
                    assert source in allowed
                    assert (ROOT / source).exists()


@pytest.mark.parametrize("status", [200, 503, None])
def test_health(status):
    spec = importlib.util.spec_from_file_location("health", DOCKER / "health.py")
    health = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(health)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        port = server.server_address[1]
        if status:
            Thread(target=server.serve_forever, daemon=True).start()
            assert health.is_healthy(port) == (status == 200)
            server.shutdown()
    if not status:
        assert not health.is_healthy(port)


def test_where_no_engine_is_installed_the_test_of_the_images_says_what_is_missing(tmp_path):
    for tool in ("bash", "dirname"):
        os.symlink(shutil.which(tool), tmp_path / tool)
    done = subprocess.run([DOCKER / "images-test.sh"], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "this is missing: podman buildah runc podman-compose" in done.stderr
    assert "nothing was built or tested" in done.stderr
