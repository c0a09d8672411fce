"""A federation of real processes on loopback: a SuperLink, SuperNodes and the SuperExecs that start their apps."""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

SCRIPTS = Path(sys.executable).parent
KEYS = Path(__file__).parents[2] / "examples" / "devices" / "keys.sh"
PATIENCE = 180.0  # seconds for what takes 2 to 15 on an idle machine
DONE = "finished:completed"


class Federation:
    """Processes with a folder, ports and keys of their own; leaving the ``with`` block ends every one of them.

    Parameters
    ----------
    folder
        An empty folder for keys, logs, Flower's own files and the SuperLink's database.
    secure
        TLS and SuperNode authentication; without it everything is insecure and SuperNodes are nameless.
    """

    def __init__(self, folder: Path, *, secure: bool = True) -> None:
        self.folder = folder
        self.secure = secure
        self.keys = folder / "keys"
        self.port = free_port()
        self._running = ExitStack()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = os.environ | {
            "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
        }

    def __enter__(self) -> Self:
        with self._running:
            for name in ("flwr", "logs", "empty"):
                (self.folder / name).mkdir(parents=True)
            self._running.callback(self._assert_nothing_left)
            self._configure()
            if self.secure:
                self.make_keys("0")
            self._start_superlink()
            self._running = self._running.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._running.close()

    def make_keys(self, *devices: str, folder: Path | None = None) -> None:
        """Run ``keys.sh`` for devices, with a new certificate authority where the folder has none."""
        done = subprocess.run(
            [KEYS, folder or self.keys, "localhost,127.0.0.1", *devices], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    def start_device(self, name: str, data: Path, *, register: bool = True, authority: Path | None = None) -> None:
        """Start a SuperNode and its SuperExec; ``register`` its key first, as the federation's owner would."""
        if self.secure and not (self.keys / name).exists():
            self.make_keys(name)
        if self.secure and register:
            self.flwr("supernode", "register", str(self.keys / f"{name}.pub"), "federation", "--name", name)
        port = free_port()
        secure = [f"--root-certificates={authority or self.keys / 'ca.crt'}"]
        secure += [f"--auth-supernode-private-key={self.keys / name}"]
        self.start(
            f"device-{name}",
            "flower-supernode",
            *(secure if self.secure else ["--insecure"]),
            f"--superlink=127.0.0.1:{self.port}",
            f"--port={port}",
            "--isolation=process",
            f'--node-config=data="{data}" client-id="{name}"',
        )
        self.start(f"device-{name}-exec", "flower-superexec", "--insecure", f"--runtime-api-address=127.0.0.1:{port}")

    def start(self, name: str, command: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a process, which is ended with the federation; its output goes to :meth:`log`."""
        log = self._log_path(name).open("ab")
        self._running.callback(log.close)
        process = subprocess.Popen(
            [SCRIPTS / command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=self.folder / "empty",
            env=self._environment,
            start_new_session=True,  # what it starts belongs to its group, and ends with it
        )
        self._processes[name] = process
        self._running.callback(end, process)
        return process

    def kill(self, name: str) -> None:
        """SIGKILL one process, and nothing that it started."""
        self._processes[name].kill()
        self._processes[name].wait()

    def stop(self, name: str) -> None:
        """End a process and what it started, as an orderly shutdown would."""
        end(self._processes[name])

    def exit_code(self, name: str) -> int:
        """Wait until a process ended by itself."""
        return self._processes[name].wait(PATIENCE)

    def log(self, name: str) -> str:
        """What a process has written so far, without colours."""
        text = self._log_path(name).read_text(encoding="utf-8", errors="replace")
        return re.sub(r"\x1b\[[0-9;]*m", "", text)

    def wait_for(self, what: str, condition: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Poll until the condition holds; if it never does, the error shows the ends of all logs."""
        limit = time.monotonic() + patience
        while not condition():
            if time.monotonic() > limit:
                ends = "\n".join(f"== {name}\n{self.log(name)[-1500:]}" for name in self._processes)
                raise AssertionError(f"{what}: not within {patience:.0f} s\n{ends}")
            time.sleep(0.5)

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Run the ``flwr`` command as its user would, and return its JSON."""
        return dict(json.loads(self.command("flwr", *arguments, "--format", "json")))

    def run_log(self, run: int) -> str:
        """What a run's ServerApp has written."""
        return self.command("flwr", "log", str(run), "federation", "--show")

    def command(self, name: str, *arguments: str) -> str:
        """Run a command of the environment, and return what it prints."""
        done = subprocess.run(
            [SCRIPTS / name, *arguments],
            cwd=self.folder / "empty",
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def online(self) -> int:
        """How many SuperNodes the SuperLink counts as online."""
        return sum(node["status"] == "online" for node in self.flwr("supernode", "list", "federation")["nodes"])

    def submit(self, app: Path, config: Mapping[str, object]) -> int:
        """Submit a run, and return its id."""
        path = self.folder / "run-config.toml"
        path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()), encoding="utf-8")
        return int(self.flwr("run", str(app), "federation", "--run-config", str(path))["run-id"])

    def status(self, run: int) -> str:
        """A run's status, such as ``"finished:completed"``."""
        return str(self.flwr("list", "federation", "--run-id", str(run))["runs"][0]["status"])

    def finish(self, run: int, patience: float = PATIENCE) -> str:
        """Wait until a run has ended, and return its status."""
        self.wait_for(f"end of run {run}", lambda: self.status(run).startswith("finished"), patience)
        return self.status(run)

    def processes(self, word: str) -> list[int]:
        """Ids of this federation's processes, also of those that others started, whose command line has the word."""
        return [pid for pid, command in _processes_with(self._environment["FLWR_HOME"]) if word in command]

    def _start_superlink(self) -> None:
        keys = self.keys
        tls = [f"--ssl-ca-certfile={keys}/ca.crt", f"--ssl-certfile={keys}/server.pem"]
        tls += [f"--ssl-keyfile={keys}/server.key", "--enable-supernode-auth"]
        self.start(
            "superlink",
            "flower-superlink",
            *(tls if self.secure else ["--insecure"]),
            f"--port={self.port}",
            "--isolation=process",
            f"--database={self.folder / 'state.db'}",
            "--disable-runtime-dependency-installation",
        )
        self.wait_for("SuperLink", self._is_healthy)
        self.start(
            "superlink-exec",
            "flower-superexec",
            f"--root-certificates={keys}/ca.crt" if self.secure else "--insecure",
            f"--runtime-api-address=127.0.0.1:{self.port}",
        )

    def _is_healthy(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.keys / "ca.crt")) if self.secure else None
        url = f"{'https' if self.secure else 'http'}://127.0.0.1:{self.port}/health"
        try:
            with urllib.request.urlopen(url, timeout=5, context=context) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _configure(self) -> None:
        trust = f'root-certificates = "{self.keys / "ca.crt"}"' if self.secure else "insecure = true"
        (self.folder / "flwr" / "config.toml").write_text(
            '[superlink]\ndefault = "federation"\n\n[superlink.federation]\n'
            f'address = "127.0.0.1:{self.port}"\n{trust}\n',
            encoding="utf-8",
        )

    def _log_path(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def _assert_nothing_left(self) -> None:
        left = _processes_with(self._environment["FLWR_HOME"])
        for pid, _ in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, f"left behind, now killed: {left}"


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its group: politely, and if that does not help after ten seconds, by force."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            continue
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # children whose parent went first


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _processes_with(home: str) -> list[tuple[int, str]]:
    """Ids and command lines of living processes whose environment names this FLWR_HOME."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if f"FLWR_HOME={home}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append((int(entry.name), command.strip()))
        except OSError:  # it ended meanwhile, or is another user's
            continue
    return [(pid, command) for pid, command in found if command]


def missing_tools() -> list[str]:
    """What these tests need and this machine lacks."""
    tools = [tool for tool in ("openssl", "ssh-keygen", "bash") if shutil.which(tool) is None]
    return tools + ([] if Path("/proc/self/environ").exists() else ["/proc"])
