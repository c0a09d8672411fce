"""The progress bar, on a console that says it is a terminal."""

import io
import logging

import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from rich.console import Console

from fedcome_flwr.cli import flower_log, rounds, screen
from fedcome_flwr.simulation import InlineGrid, run_app
from fedcome_flwr.simulation.flower_private import server_identity
from tests.unit.simulation.apps import adding_client, write_app, zeros


def test_the_bar_moves_from_nothing_to_the_end(tmp_path):
    console = Console(force_terminal=True, width=100, file=io.StringIO(), legacy_windows=False)
    with screen._progress(console) as progress:
        bar = screen._Bar(progress)
        seen = []
        update = bar._update

        def watched_update():
            update()
            task = progress.tasks[0]
            seen.append((task.completed, task.total, task.description, task.fields["phase"]))

        bar._update = watched_update
        run_app(write_app(tmp_path / "app"), num_supernodes=4, observer=bar)
    assert seen[0] == (0, 2, "starting", "")
    assert (0.25, 2, "round 1 of 2", "train 2/2") in seen
    assert (1 + 5 / 6, 2, "round 2 of 2", "evaluate 3/4") in seen
    assert [step[0] for step in seen] == sorted(step[0] for step in seen)
    assert seen[-1][0] == 2
    assert "round 2 of 2:" in console.file.getvalue()


def messages(*, config: dict | None = None, group: str = "") -> list[Message]:
    content = RecordDict({"config": ConfigRecord(config or {})})
    with server_identity():
        return [Message(content, 5, "train", group_id=group)]


def test_rounds_are_found_in_config_or_group():
    assert rounds.round_of(messages(config={"server-round": 3})[0]) == 3
    assert rounds.round_of(messages(group="4")[0]) == 4
    assert rounds.round_of(messages()[0]) is None


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        ({}, ""),
        ({"server": {"accuracy": 0.5}}, "accuracy 0.5"),
        ({"server": {"accuracy": 0.5}, "evaluate": {"accuracy": 0.25}}, "accuracy 0.25"),
        ({"train": {"fedcome-hurt-by-direction": 2, "fedcome-clients": 20}}, "hurt 2 of 20"),
        (
            {"train": {"fedcome-hurt-by-direction": 0, "fedcome-clients": 3}, "evaluate": {"accuracy": 1.0}},
            "accuracy 1, hurt 0 of 3",
        ),
        ({"train": {"loss": 1.0}, "evaluate": {"dice": 0.5}}, ""),
    ],
)
def test_a_round_is_judged_by_accuracy_and_by_who_is_hurt(metrics, text):
    assert rounds.headline({phase: MetricRecord(values) for phase, values in metrics.items()}) == text


def test_rounds_beyond_the_number_are_shown_without_it():
    lines = []
    shown = rounds.RoundLines(lines.append)
    shown.started(2)
    for number in (2, 3):
        shown.sent(messages(config={"server-round": number}))
    shown.finish()
    assert [line.split(":")[0] for line in lines] == ["round 2 of 2", "round 3"]


def test_long_metrics_are_cut():
    metrics = MetricRecord({"a": 1, "b": 0.123456, "c": [1, 2], "d": [0.5] * 9, "e": 1})
    assert rounds.metrics_text(metrics) == "a 1, b 0.1235, c [1, 2], d [9 values], ..."


def test_a_wait_for_clients_is_told_once_and_with_a_hint(monkeypatch, capsys):
    """Relies on the wording of Flower's log (1.42): another one would leave the user before a silent bar."""
    waited = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            raise TimeoutError

    monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.sleep", sleep)
    logger = logging.getLogger("flwr")
    before = logger.handlers[:]
    with (
        flower_log.flower_log(flower_log.PlainHandler(), verbose=False),
        InlineGrid(adding_client(), 1) as grid,
        pytest.raises(TimeoutError),
    ):
        FedAvg().start(grid=grid, initial_arrays=zeros(1), num_rounds=1)
    assert capsys.readouterr().out.count("raise --num-supernodes") == 1
    assert logger.handlers == before


def test_a_second_strategy_starts_the_bar_again():
    with screen._progress(Console(file=io.StringIO())) as progress:
        bar = screen._Bar(progress)
        for _ in range(2):
            bar.started(2)
            bar.sent(messages(config={"server-round": 1}))
            assert progress.tasks[0].completed == 0
            bar.finish()
            assert (progress.tasks[0].completed, progress.tasks[0].total) == (1, 2)
