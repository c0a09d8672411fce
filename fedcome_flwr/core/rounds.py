"""One round of the server as a pure function: state, model and replies in; new model, new state and report out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from .arrays import Arrays, ParameterRule, is_parameter, mean_of_buffers, split_names
from .gram import apply_combination
from .methods import Method
from .past_updates import remembered
from .round_report import RoundReport, norm_of, with_geometry, with_projections, with_solution
from .screening import Gathered, gather
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
    num_clients: int | None = None,
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
    num_clients
        N, the number of all clients, present or not, by which sums over all clients' memories are divided; the same
        as in the control variate that was sent. Needed by methods with client memory, and by no other.

    Raises
    ------
    ValueError
        ``num_clients`` is needed, and missing or smaller than the number of updates.
    """
    if method.rule.has_memory and not (num_clients or 0) >= max(1, len(updates)):
        raise ValueError(
            f"num_clients: {method.name} needs the number of all clients, expected at least {len(updates)}, "
            f"found {num_clients!r}"
        )
    started = perf_counter()
    trained, buffers = split_names(arrays, parameters)
    gathered = gather(updates, arrays, trained, method, state)
    usable, gram, count = gathered.usable, gathered.gram, len(gathered.usable)
    summed = perf_counter()
    # A memory that strayed leaves the sums meaningless: all start again at 0.
    memory = state.memory.restarted(gathered.strayed, len(updates)) if gathered.strayed else state.memory
    asked = selection.keys if selection is not None else ()
    state = replace(state, round=state.round + 1, times_chosen=_counted(state.times_chosen, asked), memory=memory)
    report = _attendance(state, method, gathered, selection, refused or {})
    if not usable:
        return RoundOutcome(arrays, state, replace(report, unchanged="no usable reply", server_step=state.server_step))

    by_examples = method.client_weights == "examples"
    weights = _shares([update.num_examples for update in usable]) if by_examples else np.full(count, 1.0 / count)
    losses = {u.key: float(u.metrics[method.loss_key]) for u in usable if method.loss_key in u.metrics}
    state, step = _with_step(state, method, losses, dict(zip(report.clients, map(float, weights), strict=True)))
    scales = np.append(_norm_bounds(gram[:count, :count], method.max_client_norm), np.ones(len(gathered.absent)))
    bounded = gram * np.outer(scales, scales)
    train_losses = np.array([losses.get(key, np.nan) for key in report.clients])
    combination = method.weighting.weigh(
        bounded, Cohort(report.clients, weights, train_losses, state.round, gathered.ages)
    )
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
    report = with_projections(report, bounded, combination.projections)
    weighed = perf_counter()

    if method.rule.has_memory and not gathered.strayed:
        assert num_clients is not None
        control = memory.control_variate(arrays, trained, num_clients) if method.rule.control else {}
        memory = memory.moved(method.rule, arrays, usable, trained, control=control, server_round=state.round)
        report = replace(report, control_norm=norm_of(control) if method.rule.control else None)
    drift = memory.mean_drift(num_clients or 1)
    factors = shrink * step * scales * combination.coefficients
    try:
        new = apply_combination(arrays, [*usable, *gathered.absent], trained, factors, drift)
    except OverflowError as error:
        return RoundOutcome(arrays, state, replace(report, unchanged=str(error), update_norm=0.0))
    if method.rule.drift:
        moved_by = {name: np.subtract(arrays[name], new[name], dtype=np.float64) for name in trained}
        report = replace(report, drift_norm=norm_of(drift), update_norm=norm_of(moved_by))
    new |= mean_of_buffers(arrays, [update.arrays for update in usable], buffers, weights)
    state = replace(
        state,
        table=selector.observe(state.table, report.clients, gram[:count, :count]),
        memory=memory,
        past=remembered(state.past, arrays, usable, trained, server_round=state.round, rounds=method.remember_rounds),
    )
    seconds = {"gram": summed - started, "weighting": weighed - summed, "update": perf_counter() - weighed}
    return RoundOutcome({name: new[name] for name in arrays}, state, replace(report, seconds=seconds))


def _attendance(
    state: ServerState,
    method: Method,
    gathered: Gathered,
    selection: Selection | None,
    refused: Mapping[str, str],
) -> RoundReport:
    """The beginning of the report: who was asked, who answered, and whose answer could not be used."""
    clients = tuple(update.key for update in gathered.usable)
    left_out = {**refused, **gathered.left_out}
    selection = selection if selection is not None else Selection(())
    answered = left_out.keys() | set(clients)
    return RoundReport(
        round=state.round,
        method=method.name,
        clients=clients,
        client_metrics={update.key: dict(update.metrics) for update in gathered.usable},
        left_out=dict(sorted(left_out.items())),
        missing=tuple(key for key in selection.keys if key not in answered),
        annealed=selection.annealed,
        selection_energy=selection.energy,
        times_chosen=state.times_chosen,
        memory_epoch=state.memory.epoch if method.rule.has_memory else None,
        memory_strayed=gathered.strayed,
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
        next_step(state.server_step, losses, state.last_losses, weights, just_trained=state.last_reporters)
        if method.server_step == "adaptive"
        else float(method.server_step)
    )
    finite = {key: loss for key, loss in losses.items() if np.isfinite(loss)}
    last = {**state.last_losses, **finite}
    return replace(state, server_step=step, last_losses=last, last_reporters=frozenset(finite)), step


def _norm_bounds(gram: NDArray[np.float64], max_client_norm: float | None) -> NDArray[np.float64]:
    """Factor on each pseudo-gradient that keeps its norm within the bound; clients that stood still do not count."""
    norms = np.sqrt(np.diagonal(gram))
    if max_client_norm is None or not norms.any():
        return np.ones(len(gram))
    bound = max_client_norm * float(np.median(norms[norms > 0]))
    return np.where(norms > bound, bound / np.where(norms > 0, norms, 1.0), 1.0)
