import dataclasses
import random

import numpy as np
import pytest

from fedcome_flwr.core import (
    ClientUpdate,
    Cohort,
    ConsensusSelection,
    Selection,
    ServerState,
    UniformSelection,
    aggregate_round,
    equal_step_control,
    fedavg,
    fedcome,
    fedfv,
)
from tests.unit.core._updates import BUFFERS, PARAMETERS, model, stacked, trained


def run(updates, method=None, state=None, reference=None, **options):
    return aggregate_round(
        state or ServerState(),
        reference if reference is not None else model("float64"),
        updates,
        method or fedcome(server_step=1.0),
        **{"selector": ConsensusSelection(), **options},
    )


def flat(arrays) -> np.ndarray:
    return np.concatenate([np.asarray(arrays[name], dtype=float).ravel() for name in PARAMETERS])


def clients(count: int, dtype: str = "float64", **values) -> list[ClientUpdate]:
    return [trained(model(dtype), f"c{i}", i, **values) for i in range(count)]


def test_fedavg_is_the_mean_by_examples():
    updates = clients(4)
    outcome = run(updates, fedavg())
    examples = np.array([u.num_examples for u in updates])
    expected = sum(w * flat(u.arrays) for w, u in zip(examples / examples.sum(), updates, strict=True))
    np.testing.assert_allclose(flat(outcome.arrays), expected, rtol=1e-12)


def test_uniform_client_weights_ignore_examples_for_parameters_and_buffers():
    updates = clients(4)
    outcome = run(updates, fedavg("uniform"))
    np.testing.assert_allclose(flat(outcome.arrays), np.mean([flat(u.arrays) for u in updates], axis=0), rtol=1e-12)
    alike = run([dataclasses.replace(u, num_examples=1) for u in updates], fedavg())
    for name in BUFFERS:
        np.testing.assert_array_equal(outcome.arrays[name], alike.arrays[name])
    assert any(not np.array_equal(run(updates, fedavg()).arrays[name], alike.arrays[name]) for name in BUFFERS)


@pytest.mark.parametrize("seed", range(5))
def test_no_client_is_hurt_and_the_margin_holds(seed):
    reference = model("float64", seed)
    updates = [trained(reference, f"c{i}", 100 * seed + i) for i in range(8)]
    outcome = run(updates, reference=reference)
    gradients, direction = stacked(reference, updates), flat(reference) - flat(outcome.arrays)
    products, report = gradients @ direction, outcome.report
    assert report.descent_bounds is not None
    assert np.all(products >= np.array(report.descent_bounds) - 1e-9)
    assert report.hurt_by_direction == 0
    assert report.smallest_product >= -1e-9
    assert report.certified
    assert report.update_norm == pytest.approx(np.linalg.norm(direction))
    assert report.descent_cost == pytest.approx(0.5 * direction @ direction)
    assert report.smoothness_limit == pytest.approx(min(report.descent_bounds) / report.descent_cost)


def test_without_conflict_fedcome_is_fedavg():
    reference = {"w": np.zeros(20, dtype="float32")}
    rng = np.random.default_rng(0)
    updates = [ClientUpdate(str(i), {"w": -rng.random(20, dtype="float32")}, i + 1) for i in range(5)]
    ours = run(updates, reference=reference).arrays["w"]
    np.testing.assert_allclose(ours, run(updates, fedavg(), reference=reference).arrays["w"], rtol=1e-6)


def test_one_full_batch_step_within_the_margin_lowers_every_clients_loss():
    """Least squares with known smoothness: at any rate below the reported limit nobody's loss rises."""
    rng = np.random.default_rng(1)
    designs = [rng.normal(size=(6, 10)) for _ in range(8)]
    targets = [scale * rng.normal(size=6) for scale in np.linspace(0.1, 3, 8)]  # the loud outvote the quiet
    w = 0.1 * rng.normal(size=10)
    smoothness = max(np.linalg.eigvalsh(a.T @ a)[-1] for a in designs)

    def losses(w):
        return np.array([0.5 * np.sum((a @ w - b) ** 2) for a, b in zip(designs, targets, strict=True)])

    def step(rate):
        gradients = [a.T @ (a @ w - b) for a, b in zip(designs, targets, strict=True)]
        updates = [ClientUpdate(str(i), {"w": w - rate * g}, 1) for i, g in enumerate(gradients)]
        return run(updates, fedcome("uniform", server_step=1.0), reference={"w": w})

    unit = step(1.0).report
    assert unit.hurt_by_mean > 0  # the mean would hurt somebody, else the test shows nothing
    rate = 0.999 * unit.smoothness_limit / smoothness  # the limit is on rate × smoothness, and scales with neither
    outcome = step(rate)
    assert outcome.report.smoothness_limit == pytest.approx(unit.smoothness_limit, rel=1e-6)
    assert rate * smoothness < outcome.report.smoothness_limit
    assert np.all(losses(outcome.arrays["w"]) < losses(w))


def test_two_runs_give_identical_bytes_whatever_the_order_of_replies():
    updates = clients(7, "float32")
    outcomes = []
    for seed in range(4):
        random.Random(seed).shuffle(updates)
        outcomes.append(run(updates, reference=model("float32")))
    for outcome in outcomes[1:]:
        for name, array in outcomes[0].arrays.items():
            assert array.tobytes() == outcome.arrays[name].tobytes()
        assert outcome.state.table.values.tobytes() == outcomes[0].state.table.values.tobytes()
        assert dataclasses.replace(outcome.report, seconds={}) == dataclasses.replace(outcomes[0].report, seconds={})


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("method", [fedavg(), fedcome(), equal_step_control("consensus-at-mean-norm")])
def test_shapes_and_types_out_equal_those_in(dtype, method):
    outcome = run(clients(3, dtype), method, reference=model(dtype))
    assert list(outcome.arrays) == list(model(dtype))
    for name, array in model(dtype).items():
        assert outcome.arrays[name].dtype == array.dtype
        assert outcome.arrays[name].shape == array.shape


BAD = {
    "nan": (lambda a: a | {"scale": np.array(np.nan)}, "array 'scale': expected finite values, found NaN"),
    "inf": (lambda a: a | {"layer.weight": np.full((4, 3), np.inf)}, "array 'layer.weight': expected finite"),
    "bad buffer": (lambda a: a | {"norm.running_mean": np.full(3, np.nan)}, "array 'norm.running_mean': expected"),
    "shape": (lambda a: a | {"scale": np.zeros((1,))}, r"array 'scale': expected shape \(\), found \(1,\)"),
    "missing": (lambda a: {n: v for n, v in a.items() if n != "scale"}, "missing 'scale'"),
    "extra": (lambda a: a | {"more": np.zeros(1)}, "unexpected 'more'"),
    "too large": (lambda a: a | {"scale": np.array(1e200)}, "square of its norm does not fit float64"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_named_and_stops_nobody(kind):
    change, text = BAD[kind]
    good = clients(4)
    bad = dataclasses.replace(good[2], key="bad", arrays=change(dict(good[2].arrays)))
    outcome = run([*good, bad])
    assert list(outcome.report.left_out) == ["bad"]
    with pytest.raises(ValueError, match=text):
        raise ValueError(outcome.report.left_out["bad"])
    alone = run(good)
    for name in model():
        np.testing.assert_array_equal(outcome.arrays[name], alone.arrays[name])
    assert "bad" not in outcome.state.table.keys
    np.testing.assert_array_equal(outcome.state.table.values, alone.state.table.values)


@pytest.mark.parametrize("count", [0, -3, float("nan"), float("inf")])
def test_a_bad_number_of_examples_is_named(count):
    good = clients(2)
    outcome = run([*good, dataclasses.replace(good[0], key="bad", num_examples=count)])
    assert outcome.report.left_out == {"bad": f"num-examples: expected a positive number, found {count!r}"}


def test_two_replies_under_one_key_are_both_left_out():
    good = clients(3)
    outcome = run([*good, dataclasses.replace(good[0])])
    assert outcome.report.left_out == {"c0": "expected one reply, found 2 under this key"}
    assert outcome.report.clients == ("c1", "c2")


def test_without_usable_replies_model_and_table_stay():
    before = run(clients(3)).state
    reference = model("float64")
    outcome = run([], state=before, reference=reference, selection=Selection(("c1",)), refused={"c7": "late"})
    assert outcome.arrays is reference
    assert outcome.state.table is before.table
    assert outcome.report.unchanged == "no usable reply"
    assert outcome.report.left_out == {"c7": "late"}
    assert outcome.report.missing == ("c1",)
    assert outcome.state.round == before.round + 1


def test_one_client_alone_gives_its_own_model():
    update = clients(1)
    np.testing.assert_allclose(flat(run(update).arrays), flat(update[0].arrays), rtol=1e-14)


def test_a_vanishing_direction_leaves_the_parameters():
    reference = {"w": np.ones(3)}
    updates = [ClientUpdate("a", {"w": np.full(3, 2.0)}, 1), ClientUpdate("b", {"w": np.zeros(3)}, 1)]
    outcome = run(updates, reference=reference)
    np.testing.assert_allclose(outcome.arrays["w"], 1.0, atol=1e-12)
    assert outcome.report.smoothness_limit is None or outcome.report.smoothness_limit >= 0


def test_zero_pseudo_gradients_are_ordinary():
    reference = model("float64")
    outcome = run([ClientUpdate(str(i), reference, 1) for i in range(3)], reference=reference)
    np.testing.assert_array_equal(flat(outcome.arrays), flat(reference))
    assert outcome.report.conflicting_pairs == 0


def test_an_overflow_of_the_models_type_leaves_it_unchanged():
    reference = {"w": np.full(3, 6e4, dtype="float16")}
    updates = [ClientUpdate("a", {"w": np.array([-6e4, 6e4, 1.0], dtype="float16")}, 1)]
    method = dataclasses.replace(fedavg(), server_step=3.0)
    outcome = run(updates, method, reference=reference)
    assert outcome.arrays is reference
    assert "'w' do not fit its type float16" in str(outcome.report.unchanged)


def test_max_client_norm_bounds_each_pseudo_gradient_by_the_median():
    reference = {"w": np.zeros(2)}
    updates = [ClientUpdate(str(i), {"w": -np.array(g)}, 1) for i, g in enumerate([[1.0, 0], [0, 1.0], [0, 1e6]])]
    outcome = run(updates, fedcome("uniform", max_client_norm=2.0, server_step=1.0), reference=reference)
    np.testing.assert_allclose(outcome.arrays["w"], [-1 / 3, -1.0])


def test_max_update_norm_scales_the_step_and_keeps_its_direction():
    updates = clients(4)
    free, bounded = run(updates), run(updates, fedcome(server_step=1.0, max_update_norm=1e-3))
    step, small = flat(model("float64")) - flat(free.arrays), flat(model("float64")) - flat(bounded.arrays)
    assert np.linalg.norm(small) == pytest.approx(1e-3)
    np.testing.assert_allclose(small / np.linalg.norm(small), step / np.linalg.norm(step), rtol=1e-6)
    assert bounded.report.update_norm == pytest.approx(1e-3)


def test_a_fixed_server_step_scales_the_update():
    updates = clients(4)
    full, half = run(updates), run(updates, fedcome(server_step=0.5))
    reference = flat(model("float64"))
    np.testing.assert_allclose(reference - flat(half.arrays), 0.5 * (reference - flat(full.arrays)), rtol=1e-12)


def test_the_adaptive_step_halves_when_losses_rise_and_lives_in_the_state():
    method = fedcome()
    first = run(clients(3, metrics={"train-loss": 1.0}), method)
    assert first.report.server_step == 1.0
    risen = run(clients(3, metrics={"train-loss": 1.2}), method, first.state)
    assert risen.report.server_step == risen.state.server_step == 0.5
    calm = run(clients(3, metrics={"train-loss": 1.2}), method, risen.state)
    assert calm.state.server_step == pytest.approx(0.55)
    fixed = run(clients(3, metrics={"train-loss": 9.0}), fedcome(server_step=1.0), calm.state)
    assert fixed.report.server_step == 1.0


def test_without_reported_losses_the_adaptive_step_is_one():
    state = ServerState()
    for _ in range(3):
        state = run(clients(3), fedcome(), state).state
    assert state.server_step == 1.0


def test_the_report_tells_who_was_asked_and_who_was_missing():
    selection = Selection(("c0", "c1", "c2", "c9"), annealed=("c1",), energy=-0.5)
    outcome = run(clients(3), selection=selection, selector=UniformSelection())
    assert outcome.report.missing == ("c9",)
    assert outcome.report.annealed == ("c1",)
    assert outcome.report.selection_energy == -0.5
    assert outcome.report.times_chosen == {"c0": 1, "c1": 1, "c2": 1, "c9": 1}
    again = run(clients(3), state=outcome.state, selection=Selection(("c0",)))
    assert again.report.times_chosen["c0"] == 2


def test_the_report_counts_conflicts():
    reference = {"w": np.zeros(2)}
    updates = [ClientUpdate(str(i), {"w": -np.array(g)}, 1) for i, g in enumerate([[1.0, 0], [-0.5, 1.0], [4.0, -0.5]])]
    report = run(updates, reference=reference).report
    assert report.conflicting_pairs == pytest.approx(2 / 3)
    assert report.hurt_by_mean == 1  # the second
    assert report.hurt_by_direction == 0
    assert report.smallest_product_of_mean < 0 <= report.smallest_product + 1e-12
    assert report.veto is not None
    assert len(report.veto) == 3


def test_the_state_given_is_not_changed():
    state = run(clients(3, metrics={"train-loss": 1.0})).state
    table, losses = state.table.values.copy(), dict(state.last_losses)
    run(clients(3, metrics={"train-loss": 5.0}), fedcome(), state)
    np.testing.assert_array_equal(state.table.values, table)
    assert state.last_losses == losses


@pytest.mark.parametrize("method", [fedcome("uniform", server_step=1.0), fedfv(alpha=0.3, tau=0)])
@pytest.mark.parametrize("limit", [None, 1.5])
def test_the_report_measures_what_projecting_did_to_each_client(method, limit):
    reference = model("float64")
    losses = {"metrics": {"train-loss": 1.0}}
    updates = [trained(reference, f"client-{seed}", seed, **losses) for seed in range(6)]
    updates.append(dataclasses.replace(updates[0], key="still", arrays=dict(reference)))
    method = dataclasses.replace(method, max_client_norm=limit)
    report = run(updates, method, reference=reference).report
    rows = stacked(reference, sorted(updates, key=lambda update: update.key))
    norms = np.linalg.norm(rows, axis=1)
    if limit:
        bound = limit * np.median(norms[norms > 0])
        rows *= np.minimum(1.0, bound / np.where(norms > 0, norms, 1.0))[:, None]
    weighed = method.weighting.weigh(
        rows @ rows.T, Cohort([u.key for u in updates], np.full(7, 1 / 7), np.full(7, 1.0), server_round=1)
    )
    projected = weighed.projections @ rows
    moved = norms > 0
    changes = np.linalg.norm(projected - rows, axis=1)[moved] / np.linalg.norm(rows, axis=1)[moved]
    pairs = [(i, j) for i in range(7) for j in range(i)]
    below = [projected[i] @ projected[j] < -1e-9 * norms[i] * norms[j] for i, j in pairs]
    assert report.relative_change == pytest.approx(np.mean(changes), rel=1e-9)
    assert report.relative_change > 0.01
    assert report.remaining_conflicts == pytest.approx(np.mean(below))


def test_methods_that_only_average_change_no_pseudo_gradient():
    report = run(clients(3), fedavg()).report
    assert report.relative_change is None
    assert report.remaining_conflicts is None
