"""Run an app's clients in Ray's processes, on Flower's own simulation engine.

The engine is reached through ``flwr.simulation.run_simulation``, which Flower calls deprecated in favour of the command
``flwr run``, and not through that command, because only so does a run give back what a run in one process does:

- the results, every reply as it comes, and the ServerApp's exception at its place; ``flwr run`` gives a log to read
  and exits with 0 whatever happened;
- nothing stays: ``flwr run`` starts two daemons that outlive it, on fixed ports, with the environment and the folder
  in which the first of them was started;
- a client's process that dies is started again; with ``flwr run`` its place stays dead and goes on drawing messages,
  each of which then fails.

Should a later Flower remove the function, what to replace is in this file; the contract tests say so first.
"""

import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from flwr.app import ConfigRecordValues, Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from .observer import ConfigValue, RunObserver
from .ray_client import RayClientApp
from .ray_surroundings import ray_is_running, ray_surroundings
from .run_config import AppError
from .watched_grid import WatchedGrid

# A process that dies, as for lack of memory, is started again, and its message is tried a second time: the death may
# have been the neighbours' fault. Ray takes these among the resources, where Flower has no place of their own for them.
_AFTER_A_DEATH: dict[str, ConfigRecordValues] = {"max_restarts": -1, "max_task_retries": 1}
_JOIN = 5.0  # seconds for a ServerApp to notice that the simulation is over


def check_ray(client_cpus: float | None, client_gpus: float | None) -> None:
    """Raise an :class:`AppError` where Ray cannot be used as asked."""
    if find_spec("ray") is None:
        raise AppError('backend "ray" needs Ray, which is not installed: pip install "fedcome-flwr[ray]"')
    if client_cpus is not None and not client_cpus > 0:
        raise AppError(f"client_cpus must be above 0, got {client_cpus:g}")
    if client_gpus is not None and not client_gpus >= 0:
        raise AppError(f"client_gpus must be 0 or more, got {client_gpus:g}")
    if ray_is_running():
        raise AppError("Ray is running in this process already; call ray.shutdown() first, since a run ends with it")


def run_on_ray(
    server_app: ServerApp,
    clients: Path | ClientApp,
    *,
    num_supernodes: int,
    run_config: Mapping[str, ConfigValue],
    client_cpus: float,
    client_gpus: float,
    observer: RunObserver,
) -> Context:
    """Run the ServerApp in a thread of this process and the clients in Ray's, and return the ServerApp's context.

    What the ServerApp raises comes through as it is. Ray's processes and files are gone afterwards, also after
    Ctrl-C.

    Parameters
    ----------
    clients
        The app's folder, or a ClientApp to be pickled.
    client_cpus
        CPU cores that Ray counts for each client, so that it decides how many run at a time; also the number of
        threads that a client's process is told to use (``OMP_NUM_THREADS``).
    client_gpus
        Share of a GPU that Ray counts for each client: with 0.25 four share one. With 0 clients see no GPU.
    """
    server = _WatchedServerApp(server_app, num_supernodes, run_config, observer)
    config: dict[str, dict[str, ConfigRecordValues]] = {
        "client_resources": {"num_cpus": client_cpus, "num_gpus": client_gpus, **_AFTER_A_DEATH},
        "init_args": {"logging_level": "ERROR", "log_to_driver": False},
    }
    with ray_surroundings():
        try:
            run_simulation(server, RayClientApp(clients, run_config), num_supernodes, backend_config=config)
        except SystemExit as error:  # Ray's answer to SIGTERM; that of a ServerApp does not come this way
            raise KeyboardInterrupt from error
        except Exception as error:
            if server.error is None:  # else the server's own is the one to tell
                raise RuntimeError(f"Flower's simulation engine failed: {_cause(error)}") from error
        finally:
            server.stop()
    if server.error is not None:
        raise server.error
    if server.context is None:
        raise RuntimeError("Flower's simulation engine ended before the ServerApp did")
    return server.context


class _WatchedServerApp(ServerApp):
    """The app's ServerApp on a grid that is watched, once all nodes are there."""

    def __init__(
        self, server_app: ServerApp, num_supernodes: int, run_config: Mapping[str, ConfigValue], observer: RunObserver
    ) -> None:
        super().__init__()
        self.context: Context | None = None
        self.error: BaseException | None = None
        self._server_app = server_app
        self._num_supernodes = num_supernodes
        self._run_config = run_config
        self._observer = observer
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, grid: Grid, context: Context) -> None:
        """Run; what is raised is kept, since Flower would let some of it end with the thread."""
        self._thread = threading.current_thread()
        try:
            watched = WatchedGrid(grid, self._observer, self._stopped)
            watched.wait_for_nodes(self._num_supernodes)
            context.run_config = dict(self._run_config)
            self._server_app(watched, context)
            self.context = context
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        """Let the ServerApp end at its next look at the grid, if it has not ended."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_JOIN)


def _cause(error: BaseException) -> BaseException:
    """The exception at the bottom of a chain."""
    while (below := error.__cause__ or error.__context__) is not None:
        error = below
    return error
