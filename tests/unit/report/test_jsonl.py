import dataclasses
import json

import pytest

from fedcome_flwr.core import RoundReport
from fedcome_flwr.report import JsonLines, read_rounds


def test_every_field_of_a_report_arrives(tmp_path):
    report = RoundReport(round=1, method="fedcome", clients=("a", "b"), left_out={"c": "why"}, norm_ratio=2.0)
    JsonLines(tmp_path / "new folder" / "run.jsonl")(report)
    (line,) = read_rounds(tmp_path / "new folder" / "run.jsonl")
    assert set(line) == {field.name for field in dataclasses.fields(RoundReport)}
    assert line["clients"] == ["a", "b"]
    assert line["left_out"] == {"c": "why"}
    assert line["norm_ratio"] == 2.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_json_does_not_know_become_null(tmp_path, value):
    path = tmp_path / "run.jsonl"
    JsonLines(path)(RoundReport(round=1, method="m", norm_ratio=value, train_losses=(value, 1.0)))
    line = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"not JSON: {name}"))
    assert line["norm_ratio"] is None
    assert line["train_losses"] == [None, 1.0]


def test_round_one_begins_anew_and_later_rounds_are_appended(tmp_path):
    path = tmp_path / "run.jsonl"
    for number in (1, 2):
        JsonLines(path)(RoundReport(round=number, method="old"))
    JsonLines(str(path))(RoundReport(round=1, method="new"))
    JsonLines(path)(RoundReport(round=2, method="new"))
    assert [(line["round"], line["method"]) for line in read_rounds(path)] == [(1, "new"), (2, "new")]
