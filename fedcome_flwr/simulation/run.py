"""Run a whole Flower App, server and clients, in this process."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import Result

from . import flower_private as flower
from .app_folder import load_components, read_app_folder
from .fresh_import import fresh_imports
from .inline import InlineGrid
from .observer import ConfigValue, RunObserver, Tally
from .recorder import recorded_strategies
from .run_config import flatten, override
from .seeding import seed_generators, torch_seeded_on_import

DEFAULT_NUM_SUPERNODES = 2  # Flower's own since 1.32


class Seconds(NamedTuple):
    """How long a run took."""

    to_first_round: float | None
    """From the call to the first message; ``None`` where no message was sent."""
    total: float


@dataclass(frozen=True)
class RunResult:
    """What a run leaves behind.

    Attributes
    ----------
    results
        What each ``Strategy.start`` in the ServerApp returned, in order. Empty for legacy servers and for
        apps that use no strategy.
    context
        The ServerApp's context, with the state that it left there.
    num_replies
        Replies of clients, error replies included.
    num_errors
        Error replies among them.
    failed_phases
        Message types, such as ``"train"``, of which every reply was an error.
    first_error
        Reason of the first error reply; its first line is the client's exception.
    seconds
        Time to the first message and in all.
    """

    results: tuple[Result, ...]
    context: Context
    num_replies: int
    num_errors: int
    failed_phases: tuple[str, ...]
    first_error: str | None
    seconds: Seconds


def run_app(
    app: str | Path | tuple[ServerApp, ClientApp],
    *,
    num_supernodes: int | None = None,
    run_config: Mapping[str, Any] | None = None,
    seed: int | None = None,
    debug: bool = False,
    observer: RunObserver | None = None,
) -> RunResult:
    """Run a Flower App from start to end in this process and return its results.

    ::

        run = run_app("examples/quickstart", num_supernodes=10, run_config={"num-server-rounds": 5})
        run.results[-1].evaluate_metrics_clientapp[5]

    All clients run one after the other in this thread, on an :class:`InlineGrid`. The working directory
    stays as it is. Of an app folder the files are imported anew in each call, and their modules are gone
    afterwards.

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
        global generators stay seeded afterwards.
    debug
        Let an exception in a client end the run, at the place where it happened, instead of becoming an
        error reply.
    observer
        Watches the run; see :class:`RunObserver`.

    Raises
    ------
    AppError
        Where the folder is no Flower App, or ``run_config`` does not fit it.
    Exception
        Whatever the ServerApp raises, with a note on failed clients if there were any.
    """
    called_at = time.perf_counter()
    tally = Tally(observer)
    with ExitStack() as stack:
        if seed is not None:
            seed_generators(seed)  # for code that draws numbers while it is imported
            stack.enter_context(torch_seeded_on_import(seed))
        if isinstance(app, tuple):
            server_app, client_app = app
            config = _with_seed(flatten(run_config or {}), run_config, seed)
        else:
            folder = read_app_folder(app)
            config = _with_seed(override(folder.run_config, run_config or {}), run_config, seed)
            num_supernodes = folder.num_supernodes if num_supernodes is None else num_supernodes
            stack.enter_context(fresh_imports(folder.folder))
            server_app, client_app = load_components(folder)
        num_supernodes = DEFAULT_NUM_SUPERNODES if num_supernodes is None else num_supernodes
        grid = InlineGrid(client_app, num_supernodes, run_config=config, debug=debug, observer=tally)
        stack.enter_context(grid)
        context = Context(flower.RUN_ID, 0, {}, RecordDict(), dict(config))
        results = stack.enter_context(recorded_strategies(tally))
        if seed is not None:
            seed_generators(seed)  # again, so that what the import drew makes no difference
        tally.opened(num_supernodes, config)
        try:
            server_app(grid, context)
        except Exception as error:
            if tally.first_error is not None:
                error.add_note(
                    f"{tally.errors.total()} of {tally.replies.total()} client replies were errors, "
                    f"the first: {tally.first_error}"
                )
            raise
        if grid.exception is not None:  # a legacy server took a client's exception for a mere failure
            raise grid.exception
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


def _with_seed(
    config: dict[str, ConfigValue], changes: Mapping[str, Any] | None, seed: int | None
) -> dict[str, ConfigValue]:
    asked_otherwise = "seed" in (changes or {})
    return config if seed is None or "seed" not in config or asked_otherwise else config | {"seed": seed}
