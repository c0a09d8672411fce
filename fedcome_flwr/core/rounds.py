"""One round of the server as a pure function: state, model and replies in; new model, new state and report out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from .arrays import (
    Arrays,
    ParameterRule,
    find_fault,
    find_non_finite,
    is_parameter,
    mean_of_buffers,
    split_names,
)
from .gram import apply_combination, gram_matrix
from .methods import Method
from .round_report import RoundReport, with_geometry, with_solution
from .selection import Selection, Selector
from .state import ServerState
from .step import next_step
from .updates import ClientUpdate
from .weighting import Cohort, combined_norm


@dataclass(frozen=True)
class RoundOutcome:
    """A round's new model, new state and report."""

    arrays: Arrays
    state: ServerState
    report: RoundReport


def aggregate_round(
    state: ServerState,
    arrays: Arrays,
    updates: Sequence[ClientUpdate],
    method: Method,
    *,
    selector: Selector,
    selection: Selection | None = None,
    refused: Mapping[str, str] | None = None,
    parameters: ParameterRule = is_parameter,
) -> RoundOutcome:
    """Aggregate the clients' updates into the next model.

    Depends on nothing but its arguments (the report's seconds apart) and not on the order of the updates. An update
    that cannot be used is left out and named in the report; without any usable one the model and the table stay as
    they are.

    Parameters
    ----------
    state
        The server's state before the round.
    arrays
        The broadcast model.
    updates
        What the clients sent, in any order.
    method, selector
        How to weigh the updates, and who learns from their cosines.
    selection
        Whom the server asked; those of them that are neither in ``updates`` nor in ``refused`` are missing.
    refused
        Replies that could not even be read: client key to reason.
    parameters
        Rule that tells parameters from buffers.
    """
    started = perf_counter()
    trained, buffers = split_names(arrays, parameters)
    usable, left_out = _screen(updates, arrays, trained)
    left_out = {**(refused or {}), **left_out}
    gram = gram_matrix(arrays, usable, trained)
    usable, gram, spoilt = _drop_non_finite(usable, gram, trained)
    left_out |= spoilt
    summed = perf_counter()
    clients = tuple(update.key for update in usable)
    asked = selection.keys if selection is not None else ()
    answered = left_out.keys() | set(clients)
    state = replace(state, round=state.round + 1, times_chosen=_counted(state.times_chosen, asked))
    report = RoundReport(
        round=state.round,
        method=method.name,
        clients=clients,
        client_metrics={update.key: dict(update.metrics) for update in usable},
        left_out=dict(sorted(left_out.items())),
        missing=tuple(key for key in asked if key not in answered),
        annealed=selection.annealed if selection is not None else (),
        selection_energy=selection.energy if selection is not None else 0.0,
        times_chosen=state.times_chosen,
    )
    if not usable:
        return RoundOutcome(arrays, state, replace(report, unchanged="no usable reply", server_step=state.server_step))

    examples = _shares([update.num_examples for update in usable])
    weights = examples if method.client_weights == "examples" else np.full(len(usable), 1.0 / len(usable))
    losses = {u.key: float(u.metrics[method.loss_key]) for u in usable if method.loss_key in u.metrics}
    state, step = _with_step(state, method, losses, dict(zip(report.clients, map(float, weights), strict=True)))
    scales = _norm_bounds(gram, method.max_client_norm)
    bounded = gram * np.outer(scales, scales)
    cohort = Cohort(report.clients, weights, np.array([losses.get(key, np.nan) for key in report.clients]))
    combination = method.weighting.weigh(bounded, cohort)
    weighed = perf_counter()

    length = step * combined_norm(bounded, combination.coefficients)
    shrink = min(1.0, method.max_update_norm / length) if method.max_update_norm and length > 0 else 1.0
    report = replace(
        report,
        client_weights=tuple(map(float, weights)),
        train_losses=tuple(losses.get(key) for key in report.clients),
        server_step=step,
        update_norm=shrink * length,
    )
    report = with_geometry(report, bounded, weights, combination.coefficients)
    report = with_solution(report, bounded, weights, combination.solution)
    try:
        new = apply_combination(arrays, usable, trained, shrink * step * scales * combination.coefficients)
    except OverflowError as error:
        return RoundOutcome(arrays, state, replace(report, unchanged=str(error), update_norm=0.0))
    new |= mean_of_buffers(arrays, [update.arrays for update in usable], buffers, examples)
    state = replace(state, table=selector.observe(state.table, report.clients, gram))
    seconds = {"gram": summed - started, "weighting": weighed - summed, "update": perf_counter() - weighed}
    return RoundOutcome({name: new[name] for name in arrays}, state, replace(report, seconds=seconds))


def _screen(
    updates: Sequence[ClientUpdate], reference: Arrays, trained: Sequence[str]
) -> tuple[list[ClientUpdate], dict[str, str]]:
    """The updates that can be used, sorted by key, and why the others cannot."""
    usable: list[ClientUpdate] = []
    left_out: dict[str, str] = {}
    count = Counter(update.key for update in updates)
    for update in sorted(updates, key=lambda update: update.key):
        if count[update.key] > 1:
            fault: str | None = f"expected one reply, found {count[update.key]} under this key"
        elif not 0 < update.num_examples < np.inf:
            fault = f"num-examples: expected a positive number, found {update.num_examples!r}"
        else:
            fault = find_fault(update.arrays, reference, trained)
        if fault is None:
            usable.append(update)
        else:
            left_out[update.key] = fault
    return usable, left_out


def _drop_non_finite(
    updates: Sequence[ClientUpdate], gram: NDArray[np.float64], trained: Sequence[str]
) -> tuple[list[ClientUpdate], NDArray[np.float64], dict[str, str]]:
    """Leave out the clients whose squared norm is not finite."""
    finite = np.isfinite(np.diagonal(gram))
    left_out = {}
    for update in (update for update, fine in zip(updates, finite, strict=True) if not fine):
        name = find_non_finite(update.arrays, trained)
        left_out[update.key] = (
            "its pseudo-gradient is too large: the square of its norm does not fit float64"
            if name is None
            else f"array {name!r}: expected finite values, found NaN or infinity"
        )
    return (
        [u for u, fine in zip(updates, finite, strict=True) if fine],
        gram[np.ix_(finite, finite)],
        left_out,
    )


def _shares(amounts: Sequence[float]) -> NDArray[np.float64]:
    values = np.array(amounts, dtype=np.float64)
    values /= values.max()  # sums of the largest numbers must not overflow
    return np.asarray(values / values.sum())


def _counted(times: Mapping[str, int], asked: Sequence[str]) -> dict[str, int]:
    return {**times, **{key: times.get(key, 0) + 1 for key in asked}}


def _with_step(
    state: ServerState, method: Method, losses: Mapping[str, float], weights: Mapping[str, float]
) -> tuple[ServerState, float]:
    """The server step of this round, and the state that remembers it and the losses."""
    step = (
        next_step(state.server_step, losses, state.last_losses, weights)
        if method.server_step == "adaptive"
        else float(method.server_step)
    )
    finite = {key: loss for key, loss in losses.items() if np.isfinite(loss)}
    return replace(state, server_step=step, last_losses={**state.last_losses, **finite}), step


def _norm_bounds(gram: NDArray[np.float64], max_client_norm: float | None) -> NDArray[np.float64]:
    """Factor on each pseudo-gradient that keeps its norm within the bound."""
    norms = np.sqrt(np.diagonal(gram))
    if max_client_norm is None:
        return np.ones(len(gram))
    bound = max_client_norm * float(np.median(norms))
    return np.where(norms > bound, bound / np.where(norms > 0, norms, 1.0), 1.0)
