import sys

import pytest

pytest.importorskip("tensorboard", reason="needs the extra tensorboard")

from fedcome_flwr.report import TensorBoard
from tests.unit.report._reports import report


def events(folder) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    found = EventAccumulator(str(folder))
    found.Reload()
    tags = found.Tags()["tensors"]
    return {tag: [(one.step, float(make_ndarray(one.tensor_proto))) for one in found.Tensors(tag)] for tag in tags}


def test_every_rounds_numbers_arrive(tmp_path):
    write = TensorBoard(tmp_path)
    for number in (1, 2):
        assert write(report(number)) is None
    found = events(tmp_path)
    assert found["fedcome/hurt_by_mean"] == [(1, 1.0), (2, 1.0)]
    assert found["fedcome/smoothness_limit"] == [(1, pytest.approx(0.1)), (2, pytest.approx(0.2))]
    assert found["clients/accuracy"][1] == (2, pytest.approx((0.2 * 20 + 0.4 * 30 + 0.6 * 40) / 100))
    assert found["clients/accuracy-lowest"][1] == (2, 0.0)
    assert found["clients/accuracy-highest"][1] == (2, pytest.approx(0.6))
    assert found["train/train-loss"][1] == (2, pytest.approx((1.0 + 1.2) / 2))
    assert found["server/accuracy"] == [(1, pytest.approx(0.05)), (2, pytest.approx(0.1))]
    assert "clients/num-examples" not in found


def test_numbers_that_are_missing_or_not_finite_are_left_out(tmp_path):
    TensorBoard(tmp_path)(
        report(1, norm_ratio=float("nan"), smoothness_limit=None, client_metrics={}, evaluations={}, server_metrics={})
    )
    found = events(tmp_path)
    assert not {"fedcome/norm_ratio", "fedcome/smoothness_limit"} & found.keys()
    assert "fedcome/server_step" in found


def test_without_tensorboard_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    with pytest.raises(ImportError, match=r"fedcome-flwr\[tensorboard\]"):
        TensorBoard(tmp_path)
