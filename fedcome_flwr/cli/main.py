"""The console command ``fedcome``."""

import bdb
import os
import sys
import traceback
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

# Flower takes half a second to load and PyTorch several, so each command imports what it needs itself.

app = typer.Typer(
    name="fedcome",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # --debug promises Python's own traceback
)

RUN_FAILED = 1
BAD_USAGE = 2
INTERRUPTED = 130  # 128 and the number of SIGINT, as shells have it


class Form(StrEnum):
    """Formats of plots."""

    png = "png"
    svg = "svg"


def _print_version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(f"fedcome-flwr {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """FedCOME for Flower: consensus aggregation and client selection on heterogeneous data."""


@app.command()
def run(
    app_dir: Annotated[Path, typer.Argument(help="Folder of a Flower App, the one with pyproject.toml.")] = Path("."),
    num_supernodes: Annotated[
        int | None, typer.Option(min=1, help="Number of clients (default: the app's own setting, else 2).")
    ] = None,
    run_config: Annotated[
        list[str] | None,
        typer.Option(
            "--run-config",
            "-c",
            help="Changes to the app's run config: \"lr=0.1 name='abc'\", or a TOML file. May be repeated.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Make the run repeatable.")] = None,
    backend: Annotated[
        str, typer.Option(help="Where clients run: 'inline', in this process, or 'ray', side by side in Ray's.")
    ] = "inline",
    client_cpus: Annotated[float | None, typer.Option(help="With Ray: CPU cores for each client (default: 1).")] = None,
    client_gpus: Annotated[
        float | None, typer.Option(help="With Ray: share of a GPU for each client, such as 0.25 (default: 0).")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Checkpoint to go on from; the app's rounds count from the beginning."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show all of Flower's log.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Stop at the first exception, with traceback; breakpoints work.")
    ] = False,
) -> None:
    """Run the Flower App in APP_DIR, server and clients.

    APP_DIR is the folder with pyproject.toml. Nothing is installed, nothing is
    written into the folder, and no process is left behind.

    Exit code: 0 if the run finished; 1 if it failed, or if every reply to
    training or to evaluation was an error; 2 if the command could not be
    used as given.
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # Flower reads it while it is imported
    from ..simulation import AppError, run_app
    from .config_text import parse_run_config
    from .rounds import first_line
    from .screen import shown_run
    from .summary import print_summary

    try:
        changes = parse_run_config(run_config or [])
        # With --debug no bar: it would draw over the debugger's prompt.
        with shown_run(plain=debug, verbose=verbose) as observer:
            result = run_app(
                app_dir,
                num_supernodes=num_supernodes,
                run_config=changes,
                seed=seed,
                backend=backend,
                client_cpus=client_cpus,
                client_gpus=client_gpus,
                resume=resume,
                debug=debug,
                observer=observer,
            )
    except AppError as error:
        _fail(f"{error}", BAD_USAGE)
    except KeyboardInterrupt:
        if backend != "ray":
            raise
        # Everything has been put away; but threads of Flower's engine wait for ever for clients that are no more.
        print("stopped", file=sys.stderr)
        sys.stdout.flush()
        os._exit(INTERRUPTED)
    except bdb.BdbQuit:  # the user left the debugger, and knows why
        raise typer.Exit(RUN_FAILED) from None
    except Exception as error:
        if debug:
            raise
        notes = [first_line(note) for note in getattr(error, "__notes__", [])]
        cause = f"{type(error).__name__}: {error}".rstrip(": ")
        _fail(
            "\n".join([*notes, f"the run failed at {_place(error, app_dir)} (--debug shows all)", cause]),
            RUN_FAILED,
        )
    print_summary(result)
    if result.failed_phases:
        _fail(f"every client's reply to {' and '.join(result.failed_phases)} was an error", RUN_FAILED)


@app.command()
def plot(
    reports: Annotated[list[Path], typer.Argument(help="Files that JsonLines wrote; several are compared.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder (default: RUN-plots beside the first file RUN.jsonl).")
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="What to write.")] = Form.png,
    metric: Annotated[str, typer.Option(help="What of the clients' evaluations to show beside the loss.")] = "accuracy",
    checkpoint: Annotated[
        Path | None, typer.Option(help="The first run's checkpoint: its similarity table is drawn, too.")
    ] = None,
) -> None:
    """Draw what the runs in REPORTS learnt, what each client went through,
    what the consensus did, and who was chosen.

    A plot whose numbers a run does not have is named and left out. Needs
    matplotlib: pip install "fedcome-flwr[plot]".

    Exit code: 0 if something was drawn, 1 if nothing could be, 2 if the
    command could not be used as given.
    """
    from ..server.checkpoint import load_checkpoint
    from .plotting import read_runs, shown_plots

    try:
        runs = read_runs(reports)
        table = load_checkpoint(checkpoint).state.table if checkpoint else None
    except (OSError, ValueError) as error:
        _fail(f"{error}", BAD_USAGE)
    folder = output or reports[0].with_name(f"{reports[0].stem}-plots")
    try:
        drawn = shown_plots(runs, folder, kind=form.value, metric=metric, table=table)
    except ImportError as error:
        _fail(f"{error}", RUN_FAILED)
    if not drawn:
        _fail("nothing could be drawn", RUN_FAILED)


@app.command()
def doctor(
    app_dir: Annotated[Path, typer.Argument(help="Folder of a Flower App, the one with pyproject.toml.")] = Path("."),
    superlink: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT of a SuperLink, or a connection of Flower's config.toml (default: not looked at)."
        ),
    ] = None,
    root_certificates: Annotated[
        Path | None, typer.Option(help="Certificate authority that the SuperLink's certificate must come from.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="The SuperLink runs without TLS.")] = False,
    private_key: Annotated[
        Path | None,
        typer.Option("--auth-supernode-private-key", help="A SuperNode's key: is it registered at the SuperLink?"),
    ] = None,
    node_config: Annotated[
        str | None,
        typer.Option(help="A SuperNode's node config, such as 'data=\"/data\"': can the ClientApp read its data?"),
    ] = None,
    nodes: Annotated[int, typer.Option(min=0, help="How many SuperNodes are to be online.")] = 2,
) -> None:
    """Look at what goes wrong most before APP_DIR is run across machines.

    Run it on the server's machine and on each device, in the Python that its
    SuperLink or SuperNode runs in, with the options that those get. Nothing
    is changed, here or there.

    Exit code: 0 if no problem was found; 1 if one was; 2 if the command could
    not be used as given.
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # Flower reads it while it is imported
    from ..simulation.app_folder import read_app_folder
    from ..simulation.run_config import AppError
    from .config_text import parse_run_config
    from .doctor import check_app, check_link, read_link, shown_findings

    try:
        folder = read_app_folder(app_dir)
        config = parse_run_config([node_config] if node_config else [], "node-config")
        link = read_link(superlink, root_certificates, insecure) if superlink else None
    except AppError as error:
        _fail(f"{error}", BAD_USAGE)
    problems = shown_findings(check_app(folder, config))
    if link:
        problems += shown_findings(check_link(link, private_key, nodes))
    if problems:
        _fail(f"{problems} problem{'s' if problems > 1 else ''} found", RUN_FAILED)


def _place(error: Exception, app_dir: Path) -> str:
    """File and line in the app where an exception passed, or where it was raised if not there."""
    frames = traceback.extract_tb(error.__traceback__)
    in_app = [frame for frame in frames if Path(frame.filename).is_relative_to(app_dir.resolve())]
    frame = (in_app or frames)[-1]
    return f"{frame.filename}:{frame.lineno}"


def _fail(text: str, code: int) -> None:
    print(f"error: {text}", file=sys.stderr)
    raise typer.Exit(code)
