"""What the log says of a client that stands in the way."""

import logging
from dataclasses import replace

import pytest

from fedcome_flwr.core.round_report import VANISHING_BELOW, RoundReport
from fedcome_flwr.server.round_log import log_round

ROUND = RoundReport(round=7, method="fedcome", clients=("a", "b", "c"), veto=(0.1, 0.2, 0.1), norm_ratio=2.0)


@pytest.fixture
def logged(caplog):
    def lines(report: RoundReport) -> list[tuple[str, str]]:
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="flwr"):
            log_round(report)
        return [(record.levelname, record.getMessage()) for record in caplog.records]

    return lines


def test_an_ordinary_round_is_one_line(logged):
    assert len(logged(ROUND)) == 1


def test_the_client_that_stops_the_training_is_named_and_the_limit_with_it(logged):
    level, text = logged(replace(ROUND, norm_ratio=1e-7))[0]
    assert level == "WARNING"
    assert "to 1.0e-07 of the mean's length; client b holds the largest veto, 50 % of all" in text
    assert "influence_limit" in text


@pytest.mark.parametrize("ratio", [VANISHING_BELOW, float("nan")])
def test_no_warning_at_the_threshold_and_none_where_the_mean_vanishes_too(logged, ratio):
    assert [level for level, _ in logged(replace(ROUND, norm_ratio=ratio))] == ["INFO"]


def test_a_client_with_more_than_half_of_all_veto_is_named(logged):
    lines = logged(replace(ROUND, veto=(0.0, 0.0, 0.9)))
    assert lines[0] == ("INFO", "fedcome round 7: client c holds 100 % of all veto")
    assert len(lines) == 2
    assert len(logged(replace(ROUND, veto=(0.1, 0.2, 0.1)))) == 1  # half is not more than half


def test_of_two_clients_none_is_named_for_its_share_alone(logged):
    two = replace(ROUND, clients=("a", "b"), veto=(0.0, 0.3))
    assert len(logged(two)) == 1
    assert logged(replace(two, norm_ratio=0.0))[0][0] == "WARNING"


def test_a_client_with_more_than_half_of_the_weight_is_named_and_the_remedy_with_it(logged):
    level, text = logged(replace(ROUND, client_weights=(0.2, 0.2, 0.6)))[0]
    assert level == "WARNING"
    assert "client c has 60 % of the weight" in text
    assert 'client_weights="uniform"' in text
    assert len(logged(replace(ROUND, client_weights=(0.25, 0.25, 0.5)))) == 1
    assert len(logged(replace(ROUND, clients=("a", "b"), veto=None, client_weights=(0.1, 0.9)))) == 1


@pytest.mark.parametrize("veto", [None, (0.0, 0.0, 0.0)])
def test_without_any_veto_nothing_is_said(logged, veto):
    assert len(logged(replace(ROUND, veto=veto, norm_ratio=0.0))) == 1
