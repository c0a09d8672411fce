"""Replies of every kind that a client could send: no exception, and arrays that are unchanged or valid.

FEDCOME_FUZZ_CASES sets the number of cases.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from fedcome_flwr import ConsensusSelection, UpdateStrategy, fedavg, fedcome, feddc, feddyn, fedfv, scaffold
from fedcome_flwr.simulation import InlineGrid
from tests.unit.server._federation import SIZE, federation, initial

CASES = int(os.environ.get("FEDCOME_FUZZ_CASES", "100"))
CLIENTS = 4

numbers = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-3, 3),
    st.sampled_from([0, -1, 1, 1e18, 1e308, -1e308, 1e-308, 10**18]),
)
dtypes = st.sampled_from(["float32", "float64", "float16", "int64", "int8", "bool", "complex64", "U3", "uint64"])
shapes = st.sampled_from([(SIZE,), (SIZE,), (SIZE,), (), (0,), (SIZE, 1), (SIZE + 1,), (2, 3)])


@st.composite
def arrays(draw: Any) -> Array:
    dtype, shape = draw(dtypes), draw(shapes)
    scale = draw(st.sampled_from([0.0, 1.0, -1.0, 1e30, 1e38, 1e300, np.nan, np.inf]))
    with np.errstate(all="ignore"):
        values = np.asarray(draw(st.integers(0, 9)) * scale + np.arange(int(np.prod(shape)))).reshape(shape)
        array = Array(
            np.asarray(np.nan_to_num(values) if dtype in ("int64", "int8", "uint64") else values).astype(dtype)
        )
    spoilt = draw(st.sampled_from(["", "", "", "", "cut", "bytes", "stype"]))
    if spoilt == "cut":
        return Array(array.dtype, array.shape, array.stype, array.data[: len(array.data) // 2])
    if spoilt == "bytes":
        return Array(array.dtype, array.shape, array.stype, draw(st.binary(max_size=200)))
    if spoilt == "stype":
        return Array(array.dtype, array.shape, "other", array.data)
    return array


good = st.builds(
    lambda seed: ArrayRecord(
        {
            "w": Array(np.random.default_rng(seed).normal(size=SIZE).astype("float32")),
            "seen": Array(np.array(seed % 7)),
        }
    ),
    st.integers(0, 2**31),
)
records = st.one_of(
    good, st.dictionaries(st.sampled_from(["w", "seen", "w", "extra", ""]), arrays(), max_size=3).map(ArrayRecord)
)
metrics = st.dictionaries(
    st.sampled_from(["num-examples", "train-loss", "step-size-sum", "other", "fedcome-clients", ""]),
    st.one_of(numbers, st.lists(st.floats(allow_nan=False), max_size=3)),
    max_size=5,
)
valid_metrics = st.builds(
    lambda n, loss, s: {"num-examples": n, "train-loss": loss, "step-size-sum": s},
    st.integers(1, 100),
    st.floats(0, 10),
    st.floats(0.001, 1),
)
client_values = st.dictionaries(
    st.sampled_from(["client-id", "memory-round"]),
    st.one_of(st.integers(-2, 4), st.text(max_size=3), st.binary(max_size=2), st.booleans(), st.floats()),
    max_size=2,
)


@st.composite
def contents(draw: Any) -> RecordDict | None:
    """The content of a reply, good but for some faults; ``None`` is an error of the client's app."""
    content: dict[str, Any] = {
        draw(st.sampled_from(["arrays", "arrays", "pseudo-gradient"])): draw(good),
        "metrics": MetricRecord(draw(valid_metrics)),
        "client": ConfigRecord({"memory-round": draw(st.sampled_from([0, 0, 0, 1]))}),
    }
    for fault in draw(st.lists(st.sampled_from(["arrays", "metrics", "client", "old", "error"]), max_size=2)):
        if fault == "error":
            return None
        if fault == "arrays":
            content[draw(st.sampled_from(["arrays", "arrays", "pseudo-gradient"]))] = draw(records)
        elif fault == "metrics":
            content["metrics"] = MetricRecord(draw(metrics))
        elif fault == "client":
            content["client"] = ConfigRecord(draw(client_values))
        else:
            content["fitres.parameters"] = content.pop("arrays", None) or draw(records)
            content["fitres.num_examples"] = MetricRecord({"num_examples": draw(numbers)})
            content["fitres.metrics"] = ConfigRecord(draw(client_values))
            content["fitres.status"] = ConfigRecord({"code": draw(st.sampled_from([0, 0, 0, 1])), "message": ""})
    return RecordDict(content)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the log of what each strange reply was left out for, and only here."""
    log = logging.getLogger("flwr")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


BOUNDED = fedcome(influence_limit=0.3, max_client_norm=2.0)
METHODS = [fedavg(), fedcome(), BOUNDED, fedfv(0.3, 2), scaffold(), feddyn(0.1), feddc(0.1)]


@settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(METHODS),
    st.lists(st.lists(contents(), min_size=CLIENTS, max_size=CLIENTS), min_size=2, max_size=2),
    st.one_of(st.permutations(range(CLIENTS)), st.lists(st.integers(0, CLIENTS), min_size=1, max_size=7)),
)
def test_no_reply_is_too_strange(method: Any, rounds: list[list[RecordDict | None]], arrivals: list[int]) -> None:
    """Two rounds; ``arrivals`` says which replies come, in which order, some twice and some never."""

    class Strange(InlineGrid):
        number = 0

        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
            messages = list(messages)
            if not messages or messages[0].metadata.message_type != "train":
                return super().send_and_receive(messages, timeout=timeout)
            drawn = rounds[self.number]
            self.number += 1
            replies = [
                Message(Error(2, "failed"), reply_to=message) if content is None else Message(content, reply_to=message)
                for message, content in zip(messages, drawn, strict=False)
            ]
            return [replies[place] for place in arrivals if place < len(replies)]

    reports: list[Any] = []
    strategy = UpdateStrategy(
        method=method,
        selector=ConsensusSelection(),
        patience=None,
        fraction_evaluate=0.0,
        on_round=lambda report: reports.append(report) and None,
    )
    with quiet(), Strange(federation(), CLIENTS) as grid:
        result = strategy.start(grid=grid, initial_arrays=initial(), num_rounds=2)
    found = {name: array.numpy() for name, array in result.arrays.items()}
    assert {name: (a.shape, a.dtype) for name, a in found.items()} == {
        name: (array.numpy().shape, array.numpy().dtype) for name, array in initial().items()
    }
    assert np.isfinite(found["w"]).all()
    assert np.isfinite(strategy.state.table.among([str(i) for i in range(CLIENTS)])).all()
    assert np.isfinite(strategy.state.server_step)
    for report in reports:
        event(f"{len(report.clients)} usable replies")
        everybody = {*report.clients, *report.left_out, *report.missing}
        assert everybody == {str(client) for client in range(CLIENTS)}  # nobody is lost without a word
        assert not set(report.clients) & set(report.left_out)
