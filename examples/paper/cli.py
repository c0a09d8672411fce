"""The command line: which runs a target needs, running them side by side, and its tables and figures."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path

from examples.paper import engine, store
from examples.paper.protocol import ARMS, DATASETS, RESULTS, SCALES
from examples.paper.runs import TARGETS, Choice, Run, runs_of

DESCRIPTION = """The paper's tables and figures.

A target runs what it needs and does not have yet, then writes its table or figure into
examples/paper/results. Runs that were interrupted go on where they stopped. `claims` runs
nothing: it judges the paper's claims by the kept results. `all` is every table and figure
and the claims, without `grid`, the search for hyperparameters."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what was asked for."""
    parser = _parser()
    given = parser.parse_args(arguments)
    data = Path(given.data).resolve() if given.data else None
    scale = SCALES[given.scale]
    choice = Choice(given.datasets, given.methods, given.seeds)
    if data:
        for name in given.datasets or ():
            if not (data / name).is_dir():
                parser.error(f"--data: expected a folder {name!r} in {data}")
    if given.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            parser.error("--device: expected a GPU that PyTorch can use, found none; use --device cpu")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes below: runs side by side share the cores
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")  # ours is the one to watch
    if given.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    targets = TARGETS if given.target == "all" else (given.target,)
    if not given.report_only and given.target not in ("claims", "table5"):
        needed = {run.name: run for target in targets if target != "table5" for run in runs_of(target, scale, choice)}
        command = "python -m examples.paper " + " ".join(sys.argv[1:])
        _run_all(list(needed.values()), given.jobs, data, given.backend, given.device, command)
    from examples.paper.reporting import report

    report(given.target, scale, choice)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.paper", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", choices=(*TARGETS, "grid", "claims", "all"))
    parser.add_argument(
        "--scale",
        choices=tuple(SCALES),
        default="small",
        help="paper: the paper's rounds and images; small: what two cores can do (default: %(default)s)",
    )
    parser.add_argument("--datasets", nargs="+", choices=tuple(DATASETS), default=(), help="default: the target's")
    parser.add_argument("--methods", nargs="+", choices=tuple(ARMS), default=(), help="default: all, with the controls")
    parser.add_argument("--seeds", nargs="+", type=int, default=(), help="default: the scale's")
    parser.add_argument("--backend", choices=("inline", "ray"), default="inline", help="default: %(default)s")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, a core each (default: %(default)s)")
    parser.add_argument(
        "--data",
        default=os.environ.get("FEDCOME_DATA"),
        metavar="FOLDER",
        help="folder with the data sets as local folders mnist, femnist, cifar10, cifar100 "
        "(default: $FEDCOME_DATA, else the Hugging Face hub)",
    )
    parser.add_argument("--report-only", action="store_true", help="run nothing, only write what the kept runs give")
    return parser


def _run_all(runs: list[Run], jobs: int, data: Path | None, backend: str, device: str, command: str) -> None:
    """Run what is open, with the time that is left on the screen; a run that fails does not stop the others."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    todo = [run for run in runs if not store.is_done(run.name)]
    console = Console(stderr=True)
    console.print(f"{len(runs)} runs, {len(runs) - len(todo)} of them done; results: {_short_path(RESULTS)}")
    if not todo:
        return
    columns = (
        TextColumn("rounds"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(elapsed_when_finished=False),
    )
    failed: list[str] = []
    with (
        Progress(*columns, console=console, speed_estimate_period=600) as progress,
        ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool,
    ):
        bar = progress.add_task("", total=sum(run.rounds for run in todo))
        settings = {"data": data, "backend": backend, "device": device, "command": command}
        open_runs: dict[Future[dict[str, object]], Run] = {
            pool.submit(engine.execute, run, **settings): run
            for run in todo  # type: ignore[arg-type]
        }
        finished_rounds = finished = 0
        while open_runs:
            done, _ = wait(open_runs, timeout=2)
            for future in done:
                run = open_runs.pop(future)
                finished += 1
                finished_rounds += run.rounds
                if error := future.exception():
                    failed.append(run.name)
                    console.print(f"{finished} of {len(todo)}: {run.name} failed: {type(error).__name__}: {error}")
                    continue
                record = store.load(run.name)
                assert record is not None
                console.print(
                    f"{time.strftime('%H:%M')}  {finished} of {len(todo)}: {run.name}: accuracy "
                    f"{record.final_accuracy:.4f}, {record.end['seconds']:.0f} s"
                )
            going_on = sum(_rounds_written(run) for run in open_runs.values())
            progress.update(bar, completed=finished_rounds + going_on)
    if failed:
        raise SystemExit(
            f"error: {len(failed)} of {len(todo)} runs failed; the others are kept. Run it again to go on."
        )


def _rounds_written(run: Run) -> int:
    try:
        with (engine.WORK / run.name / "rounds.jsonl").open("rb") as file:
            return sum(1 for _ in file)
    except FileNotFoundError:
        return 0


def _short_path(path: Path) -> str:
    return os.path.relpath(path)
