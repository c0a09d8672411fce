"""Run a whole Flower App, server and clients, on this machine."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from . import flower_private as flower
from .app_folder import load_components, read_app_folder
from .fresh_import import fresh_imports
from .inline import InlineGrid
from .observer import ConfigValue, RunObserver, Tally
from .recorder import recorded_strategies
from .result import RunResult, Seconds
from .run_config import AppError, flatten, override
from .seeding import seed_generators, torch_seeded_on_import

DEFAULT_NUM_SUPERNODES = 2  # Flower's own since 1.32
BACKENDS = ("inline", "ray")


def run_app(
    app: str | Path | tuple[ServerApp, ClientApp],
    *,
    num_supernodes: int | None = None,
    run_config: Mapping[str, Any] | None = None,
    seed: int | None = None,
    backend: str = "inline",
    client_cpus: float | None = None,
    client_gpus: float | None = None,
    resume: str | Path | None = None,
    debug: bool = False,
    observer: RunObserver | None = None,
) -> RunResult:
    """Run a Flower App from start to end and return its results.

    ::

        run = run_app("examples/quickstart", num_supernodes=10, run_config={"num-server-rounds": 5})
        run.results[-1].evaluate_metrics_clientapp[5]

    All clients run one after the other in this thread, on an :class:`InlineGrid`; with ``backend="ray"`` side by
    side in processes of Ray, on Flower's own simulation engine. The working directory stays as it is. Of an app
    folder the files are imported anew in each call, and their modules are gone afterwards.

    Parameters
    ----------
    app
        Folder of a Flower App (with ``pyproject.toml``), or a ServerApp and a ClientApp.
    num_supernodes
        Number of clients. Default: what the app's ``[tool.flwr.federations]`` says (the place before Flower
        1.32), else 2, as in Flower today.
    run_config
        Changes to the app's ``[tool.flwr.app.config]``, nested or with dotted keys; they must name keys
        that the app has and keep their types. For a pair of apps, the whole configuration.
    seed
        Seed of Python's ``random``, of NumPy's global generator and, where the app uses PyTorch, of
        PyTorch's; also the app's run-config key ``seed``, if it has one and ``run_config`` says nothing of
        it. Same seed, same bytes, except for legacy servers, whose threads decide the clients' order. The
        global generators stay seeded afterwards. On Ray it reaches the ServerApp only: clients that draw from
        global generators, and not from the ``client-seed`` that our strategies send, differ from run to run.
    backend
        ``"inline"`` or ``"ray"``.
    client_cpus
        On Ray, CPU cores for each client (default: 1); they decide how many clients run at a time.
    client_gpus
        On Ray, share of a GPU for each client (default: 0, no GPU), such as 0.25 for four clients on each.
    resume
        Checkpoint of one of our strategies: the run goes on where it was written, and the app's number of rounds counts
        from the very beginning.
    debug
        Let an exception in a client end the run, at the place where it happened, instead of becoming an
        error reply.
    observer
        Watches the run; see :class:`RunObserver`.

    Raises
    ------
    AppError
        Where the folder is no Flower App, ``run_config`` does not fit it, or the backend cannot be used as asked.
    Exception
        Whatever the ServerApp raises, with a note on failed clients if there were any.
    """
    called_at = time.perf_counter()
    _check_backend(backend, client_cpus, client_gpus, debug)
    if resume is not None and not Path(resume).is_file():
        raise AppError(f"resume: expected a checkpoint, found no file {str(resume)!r}")
    tally = Tally(observer)
    with ExitStack() as stack:
        if seed is not None:
            seed_generators(seed)  # for code that draws numbers while it is imported
            stack.enter_context(torch_seeded_on_import(seed))
        if isinstance(app, tuple):
            server_app, client_app = app
            place = None
            config = _with_seed(flatten(run_config or {}), run_config, seed)
        else:
            folder = read_app_folder(app)
            config = _with_seed(override(folder.run_config, run_config or {}), run_config, seed)
            num_supernodes = folder.num_supernodes if num_supernodes is None else num_supernodes
            place = folder.folder
            stack.enter_context(fresh_imports(place))
            server_app, client_app = load_components(folder)
        num_supernodes = DEFAULT_NUM_SUPERNODES if num_supernodes is None else num_supernodes
        results = stack.enter_context(recorded_strategies(tally, None if resume is None else Path(resume).absolute()))
        if seed is not None:
            seed_generators(seed)  # again, so that what the import drew makes no difference
        tally.opened(num_supernodes, config)
        try:
            if backend == "ray":
                from .ray_backend import run_on_ray  # Flower's engine, which inline runs do without

                context = run_on_ray(
                    server_app,
                    place or client_app,
                    num_supernodes=num_supernodes,
                    run_config=config,
                    client_cpus=1 if client_cpus is None else client_cpus,
                    client_gpus=0 if client_gpus is None else client_gpus,
                    observer=tally,
                )
            else:
                context = _run_inline(server_app, client_app, num_supernodes, config, debug, tally)
        except Exception as error:
            if tally.first_error is not None:
                error.add_note(
                    f"{tally.errors.total()} of {tally.replies.total()} client replies were errors, "
                    f"the first: {tally.first_error}"
                )
            raise
    return RunResult(
        results=tuple(results),
        context=context,
        num_replies=tally.replies.total(),
        num_errors=tally.errors.total(),
        failed_phases=tuple(kind for kind, count in tally.replies.items() if tally.errors[kind] == count),
        first_error=tally.first_error,
        seconds=Seconds(
            to_first_round=None if tally.first_sent_at is None else tally.first_sent_at - called_at,
            total=time.perf_counter() - called_at,
        ),
    )


def _check_backend(backend: str, client_cpus: float | None, client_gpus: float | None, debug: bool) -> None:
    if backend not in BACKENDS:
        raise AppError(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}")
    if backend == "ray":
        if debug:
            raise AppError("debug needs backend 'inline': on Ray the clients run in other processes")
        from .ray_backend import check_ray

        check_ray(client_cpus, client_gpus)
    elif client_cpus is not None or client_gpus is not None:
        name = "client_cpus" if client_cpus is not None else "client_gpus"
        raise AppError(f"{name} needs backend 'ray': on 'inline' the clients run one after the other in this process")


def _run_inline(
    server_app: ServerApp,
    client_app: ClientApp,
    num_supernodes: int,
    config: Mapping[str, ConfigValue],
    debug: bool,
    tally: Tally,
) -> Context:
    context = Context(flower.RUN_ID, 0, {}, RecordDict(), dict(config))
    with InlineGrid(client_app, num_supernodes, run_config=config, debug=debug, observer=tally) as grid:
        server_app(grid, context)
    if grid.exception is not None:  # a legacy server took a client's exception for a mere failure
        raise grid.exception
    return context


def _with_seed(
    config: dict[str, ConfigValue], changes: Mapping[str, Any] | None, seed: int | None
) -> dict[str, ConfigValue]:
    asked_otherwise = "seed" in (changes or {})
    return config if seed is None or "seed" not in config or asked_otherwise else config | {"seed": seed}
