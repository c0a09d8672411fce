"""Flower's records to the values that the mathematics takes, and back."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from ..core.arrays import Arrays
from ..core.npy import view_npy
from ..core.round_report import RoundReport
from ..core.updates import ClientUpdate, UpdateKind

PSEUDO_GRADIENT_KEY = "pseudo-gradient"
CLIENT_RECORD_KEY = "client"
CLIENT_ID_KEY = "client-id"
MEMORY_ROUND_KEY = "memory-round"
CONTROL_KEY = "control"
METRIC_PREFIX = "fedcome-"


class ReplyError(ValueError):
    """A reply that does not follow the message contract; the text says what was expected and what was found."""


def to_arrays(record: ArrayRecord) -> dict[str, NDArray[np.generic]]:
    """The record's arrays by name, read without a copy (they are read-only)."""
    return {name: _view(name, array) for name, array in record.items()}


def to_record(arrays: Arrays) -> ArrayRecord:
    """The arrays as a Flower record, 0-dimensional ones included."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def to_update(key: str, content: RecordDict, *, arrays_key: str, weight_key: str) -> ClientUpdate:
    """A training reply as a client update.

    Parameters
    ----------
    key
        The client's key.
    content
        The reply: one ArrayRecord under ``arrays_key`` (the trained model) or ``"pseudo-gradient"``, and a
        MetricRecord with ``weight_key``. Of ConfigRecords only ``memory-round`` in ``client`` is read here.
    arrays_key, weight_key
        The strategy's names, ``"arrays"`` and ``"num-examples"`` unless the user chose others.

    Raises
    ------
    ReplyError
        Records or the number of examples are missing or of the wrong kind.
    """
    kinds: dict[str, UpdateKind] = {arrays_key: "arrays", PSEUDO_GRADIENT_KEY: "pseudo-gradient"}
    names = [name for name in content.array_records if name in kinds]
    if len(names) != 1:
        raise ReplyError(
            f"expected one ArrayRecord named {arrays_key!r} or {PSEUDO_GRADIENT_KEY!r}, "
            f"found {sorted(content.array_records) or 'none'}"
        )
    metrics = to_metrics(content, weight_key)
    return ClientUpdate(
        key=key,
        arrays=to_arrays(content.array_records[names[0]]),
        num_examples=metrics.pop(weight_key),
        kind=kinds[names[0]],
        metrics=metrics,
        memory_round=_memory_round(content),
    )


def to_metrics(content: RecordDict, weight_key: str) -> dict[str, float]:
    """All single numbers in the reply's MetricRecords; lists of numbers are left to the user's own aggregation.

    Raises
    ------
    ReplyError
        ``weight_key`` is missing or is no single number.
    """
    values = merged_metrics(content)
    found = values.get(weight_key)
    if not isinstance(found, int | float):
        raise ReplyError(
            f"expected a number {weight_key!r} in a MetricRecord, found "
            + (f"{found!r}" if weight_key in values else f"the metrics {sorted(values) or 'none'}")
        )
    return single_numbers(values)


def merged_metrics(content: RecordDict) -> MetricRecord:
    """All of a reply's metrics in one record."""
    return MetricRecord({name: value for record in content.metric_records.values() for name, value in record.items()})


def single_numbers(metrics: MetricRecord) -> dict[str, float]:
    """The metrics that are one number each."""
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}


def comparable(contents: list[RecordDict], weight_key: str) -> list[RecordDict]:
    """The replies' metrics, cut down to what all have in the same shape, as Flower's weighted average needs them.

    ConfigRecords stay, so that an aggregation function of the user's sees the strings and bytes that clients sent.
    """
    merged = [merged_metrics(content) for content in contents]
    shapes = [{(name, _length(value)) for name, value in metrics.items()} for metrics in merged]
    common = {name for name, _ in set.intersection(*shapes)} | {weight_key} if merged else set()
    return [
        RecordDict(
            {
                **content.config_records,
                "metrics": MetricRecord({name: value for name, value in metrics.items() if name in common}),
            }
        )
        for metrics, content in zip(merged, contents, strict=True)
    ]


def _length(value: object) -> int | None:
    """How many numbers a metric holds; ``None`` for a single one, which is no list."""
    return len(value) if isinstance(value, list) else None


def label_of(message: Message) -> str | None:
    """The name that a client gives itself, its ``client-id``, if it gives one."""
    record = message.content.config_records.get(CLIENT_RECORD_KEY) if message.has_content() else None
    value = record.get(CLIENT_ID_KEY) if record is not None else None
    return str(value) if isinstance(value, str | int) and str(value) else None


def _memory_round(content: RecordDict) -> int | None:
    value = content.config_records.get(CLIENT_RECORD_KEY, ConfigRecord()).get(MEMORY_ROUND_KEY)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def report_metrics(report: RoundReport) -> dict[str, float]:
    """The report's numbers under their ``fedcome-`` names, for Flower's result; identities never travel as metrics."""
    numbers: dict[str, float | None] = {
        "clients": len(report.clients),
        "left-out": len(report.left_out),
        "missing": len(report.missing),
        "stray-replies": report.stray_replies,
        "conflicting-pairs": report.conflicting_pairs,
        "hurt-by-mean": report.hurt_by_mean,
        "hurt-by-direction": report.hurt_by_direction,
        "smallest-product": report.smallest_product,
        "norm-ratio": report.norm_ratio,
        "direction-norm": report.direction_norm,
        "update-norm": report.update_norm,
        "server-step": report.server_step,
        "descent-bound": min(report.descent_bounds) if report.descent_bounds else None,
        "descent-cost": report.descent_cost,
        "smoothness-limit": report.smoothness_limit,
        "residual": report.residual,
        "certified": None if report.certified is None else int(report.certified),
        "fallbacks": len(report.fallbacks),
        "at-influence-limit": report.at_influence_limit,
        "selection-energy": report.selection_energy,
        "memory-epoch": report.memory_epoch,
        "memory-strayed": len(report.memory_strayed) if report.memory_epoch is not None else None,
        "control-norm": report.control_norm,
        "drift-norm": report.drift_norm,
        "unchanged": int(report.unchanged is not None),
        "seconds": sum(report.seconds.values()),
    }
    return {METRIC_PREFIX + name: value for name, value in numbers.items() if value is not None}


def _view(name: str, array: Array) -> NDArray[np.generic]:
    """A read-only view of a Flower array's bytes; ``Array.numpy()`` would copy them, for every client at once."""
    if array.stype != "numpy.ndarray":
        raise ReplyError(f"array {name!r}: expected the serialisation 'numpy.ndarray', found {array.stype!r}")
    try:
        return view_npy(array.data)
    except ValueError as error:
        raise ReplyError(f"array {name!r}: expected bytes in NumPy's format, found something else: {error}") from error
