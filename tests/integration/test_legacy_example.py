"""The old project: it runs as it is, and with the two changed lines that its README shows."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn", reason="needs the extra data")

LEGACY = Path(__file__).parents[2] / "examples" / "legacy"


def run(app: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedcome_flwr", "run", str(app), "--num-supernodes", "10", "--verbose", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def patched(tmp_path) -> Path:
    app = tmp_path / "legacy"
    shutil.copytree(LEGACY, app, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "apply", "fedcome.diff"], cwd=app, check=True, capture_output=True)
    return app


def test_the_difference_is_two_lines():
    lines = (LEGACY / "fedcome.diff").read_text().splitlines()
    changed = [line for line in lines if line.startswith(("+", "-")) and not line.startswith(("+++", "---"))]
    assert len(changed) == 4  # two lines, before and after
    assert all(line in (LEGACY / "README.md").read_text() for line in changed)


def test_it_runs_before_and_after(patched):
    before = run(LEGACY, "--run-config", "num-server-rounds=5")
    after = run(patched, "--run-config", "num-server-rounds=5")
    assert before.returncode == after.returncode == 0, before.stderr + after.stderr
    assert "fedcome round" not in before.stdout + before.stderr
    assert "fedcome round 5: fedcome over 10 clients" in after.stdout + after.stderr
    assert "by the direction 0" in after.stdout + after.stderr
