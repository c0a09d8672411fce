"""Catch the results of the strategies that a ServerApp starts."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result, Strategy

from .observer import Phase, RunObserver
from .run_config import AppError


@contextmanager
def recorded_strategies(observer: RunObserver, resume: Path | None = None) -> Iterator[list[Result]]:
    """Collect what each ``Strategy.start`` returns while the ``with`` block runs.

    A ServerApp's main function gives nothing back, so ``start`` is wrapped for a while: in ``Strategy`` and
    in each class that has its own. Of calls within calls (``super().start``) the outermost counts. The
    observer hears of the start, of each round's metrics and of the end. With ``resume`` the first strategy goes on from
    that checkpoint.
    """
    results: list[Result] = []
    with ExitStack() as stack:
        recorder = _Recorder(observer, results, resume)
        for strategy_class in _with_subclasses(Strategy):
            if "start" in vars(strategy_class):
                stack.enter_context(_replaced(strategy_class, "start", recorder.wrap_start))
        yield results


class _Recorder:
    def __init__(self, observer: RunObserver, results: list[Result], resume: Path | None) -> None:
        self._observer = observer
        self._resume = resume
        self._results = results
        self._inside = False

    def wrap_start(self, start: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(start)
        def recorded_start(strategy: Strategy, *args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return start(strategy, *args, **kwargs)
            self._inside = True
            try:
                done = self._resumed(strategy)
                num_rounds = _num_rounds(start, (strategy, *args), kwargs)
                self._observer.started(None if num_rounds is None else max(0, num_rounds - done))
                if kwargs.get("evaluate_fn"):
                    kwargs["evaluate_fn"] = self._wrap_evaluate_fn(kwargs["evaluate_fn"])
                with (
                    _replaced(type(strategy), "aggregate_train", self._wrap_aggregate("train", strategy)),
                    _replaced(type(strategy), "aggregate_evaluate", self._wrap_aggregate("evaluate", strategy)),
                ):
                    result = start(strategy, *args, **kwargs)
            finally:
                self._inside = False
            if isinstance(result, Result):
                self._results.append(result)
                self._observer.ended(result)
            return result

        return recorded_start

    def _resumed(self, strategy: Strategy) -> int:
        """Let the run's first strategy go on from the checkpoint; the number of rounds that it has behind it then."""
        resume, self._resume = self._resume, None
        if resume is None:
            return 0
        from ..server.checkpoint import load_checkpoint
        from ..server.strategy import UpdateStrategy

        if not isinstance(strategy, UpdateStrategy):
            raise AppError(f"resume: expected a strategy of fedcome_flwr, found {type(strategy).__name__}")
        strategy.checkpoint.resume = resume
        return load_checkpoint(resume).state.round

    def _wrap_aggregate(self, phase: Phase, strategy: Strategy) -> Callable[..., Any]:
        def wrap(aggregate: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(aggregate)
            def reported(this: Strategy, server_round: int, *args: Any, **kwargs: Any) -> Any:
                outcome = aggregate(this, server_round, *args, **kwargs)
                metrics = outcome[1] if phase == "train" else outcome
                if this is strategy and metrics is not None:
                    self._observer.aggregated(phase, server_round, metrics)
                return outcome

            return reported

        return wrap

    def _wrap_evaluate_fn(
        self, evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None]
    ) -> Callable[[int, ArrayRecord], MetricRecord | None]:
        @functools.wraps(evaluate_fn)
        def reported(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            metrics = evaluate_fn(server_round, arrays)
            if metrics is not None:
                self._observer.aggregated("server", server_round, metrics)
            return metrics

        return reported


def _with_subclasses(root: type[Any]) -> set[type[Any]]:
    return {root}.union(*map(_with_subclasses, root.__subclasses__()))


def _num_rounds(start: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    try:
        bound = inspect.signature(start).bind(*args, **kwargs)
    except TypeError:  # the call itself is about to say so
        return None
    bound.apply_defaults()
    number = {**bound.arguments, **bound.arguments.get("kwargs", {})}.get("num_rounds")
    return number if isinstance(number, int) else None


@contextmanager
def _replaced(owner: type, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Replace a method of a class; an inherited one is inherited again afterwards."""
    # On the class, not on the strategy: a strategy that is pickled or copied in a round must not hold the
    # wrapper.
    own = vars(owner).get(name)
    setattr(owner, name, wrap(getattr(owner, name)))
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)
