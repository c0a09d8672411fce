"""A long training keeps nothing of its rounds but the numbers of Flower's result."""

import gc
import logging
import tracemalloc

import pytest

from fedcome_flwr import ConsensusSelection, UpdateStrategy, fedcome, feddc
from fedcome_flwr.simulation import InlineGrid
from tests.unit.server._federation import federation, initial
from tests.unit.server._methods import remembering

PER_ROUND = 5 * 1024  # Flower's result: some forty numbers a round, each an object under a name


@pytest.mark.parametrize(("rounds", "method"), [(60, "feddc"), pytest.param(2000, "fedcome", marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_rounds(rounds, method, caplog):
    caplog.set_level(logging.CRITICAL, "flwr")  # the log of a test is kept in memory
    methods = {"feddc": feddc(0.1), "fedcome": fedcome()}
    held = {}

    def note(report):
        if report.round in (rounds // 4, rounds):
            gc.collect()
            held[report.round] = tracemalloc.get_traced_memory()[0]

    app = federation()
    if method == "feddc":
        plain, asked = remembering()

        def app(message, context):
            asked.clear()
            return plain(message, context)

    strategy = UpdateStrategy(
        method=methods[method], selector=ConsensusSelection(), fraction_train=0.5, fraction_evaluate=0.0, on_round=note
    )
    with InlineGrid(app, 6) as grid:
        tracemalloc.start()
        try:
            strategy.start(grid=grid, initial_arrays=initial(), num_rounds=rounds)
        finally:
            tracemalloc.stop()
    growth = (held[rounds] - held[rounds // 4]) / (rounds - rounds // 4)
    assert growth < PER_ROUND, f"{growth:.0f} bytes a round"
