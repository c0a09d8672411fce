"""The environment, files and silence in which Ray and Flower's engine run."""

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from . import flower_private as flower

_ENVIRONMENT = {
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # else Ray copies the working directory where Python was started by uv
    "RAY_USAGE_STATS_ENABLED": "0",  # no telemetry
    # The error reply says it of a client's process; and at the end Flower stops them by a call that never returns.
    "RAY_DEDUP_LOGS_SKIP_REGEX": r"Task ClientAppActor\.\w+ failed|A worker died or was killed",
}


@contextmanager
def ray_surroundings() -> Iterator[None]:
    """The environment, files and silence in which Ray and Flower's engine run; all is as before afterwards."""
    before = dict(os.environ)
    logger = logging.getLogger("flwr")
    with ExitStack() as stack:
        stack.callback(_restore_environment, before)
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if "RAY_TMPDIR" not in os.environ:
            # Not the folder for temporary files: that of macOS is too long for the sockets that Ray puts there.
            place = "/tmp" if Path("/tmp").is_dir() else None
            folder = TemporaryDirectory(prefix="fedcome-", dir=place, ignore_cleanup_errors=True)
            os.environ["RAY_TMPDIR"] = stack.enter_context(folder)
            stack.callback(_end_processes, folder.name)
        stack.enter_context(flower.server_identity())  # run_simulation sets one and leaves it
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Tip: In future versions of Ray", FutureWarning)
        stack.callback(setattr, logger, "propagate", logger.propagate)  # in a notebook Flower changes it for good
        logger.addFilter(_is_news)
        stack.callback(logger.removeFilter, _is_news)
        if threading.current_thread() is threading.main_thread():  # Ray replaces the handler by one that raises
            stack.callback(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)
        stack.callback(_stop_ray)
        yield


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a record of Flower's log says what nothing else says.

    Its engine logs each client's failure, with pages of traceback, beside the error reply; and that run_simulation is
    deprecated, which is for us to know.
    """
    path = Path(record.pathname)
    engine = "vce" in path.parts or "ray_transport" in path.parts or path.name == "run_simulation.py"
    return not engine and not (record.funcName == "warn_deprecated_feature" and "run_simulation" in record.getMessage())


def ray_is_running() -> bool:
    """Whether this process is connected to Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _stop_ray() -> None:
    """Stop Ray where Flower did not get so far as to do it."""
    if ray_is_running():
        sys.modules["ray"].shutdown()


def _end_processes(folder: str) -> None:
    """End those of Ray's processes that are still there; they are the ones that hold files open in its folder.

    Where Ray is interrupted while it starts, two of its agents take a minute to notice.
    """
    for process in Path("/proc").glob("[0-9]*"):  # empty where there is none, as on macOS
        with suppress(OSError):  # other people's processes, and those that are gone by now
            files = [os.readlink(file) for file in (process / "fd").iterdir()]
            if int(process.name) != os.getpid() and any(file.startswith(f"{folder}/") for file in files):
                os.kill(int(process.name), signal.SIGKILL)


def _restore_environment(before: Mapping[str, str]) -> None:
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
