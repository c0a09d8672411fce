import numpy as np
import pytest

from fedcome_flwr.core.arrays import find_fault, find_non_finite, is_parameter, mean_of_buffers, split_names
from tests.unit.core._updates import BUFFERS, PARAMETERS, model


def test_parameters_and_buffers_are_told_apart_by_type_and_name():
    assert split_names(model()) == (PARAMETERS, BUFFERS)


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "bool"])
def test_integer_and_boolean_arrays_are_buffers(dtype):
    assert not is_parameter("weight", np.zeros(2, dtype=dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floating_arrays_are_parameters_unless_named_as_statistics(dtype):
    assert is_parameter("weight", np.zeros(2, dtype=dtype))
    assert not is_parameter("bn.running_var", np.zeros(2, dtype=dtype))


def test_a_caller_can_bring_an_own_rule():
    parameters, buffers = split_names(model(), lambda name, array: name == "scale")
    assert parameters == ("scale",)
    assert set(buffers) == set(model()) - {"scale"}


def test_an_own_rule_cannot_make_integers_trainable():
    with pytest.raises(ValueError, match=r"'mask'.*floating-point type, found bool"):
        split_names(model(), lambda name, array: name in ("scale", "mask"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"scale": None}, "missing 'scale'"),
        ({"other": np.zeros(1)}, "unexpected 'other'"),
        ({"layer.weight": np.zeros((3, 4))}, r"'layer.weight': expected shape \(4, 3\), found \(3, 4\)"),
        ({"scale": np.zeros(1)}, r"'scale': expected shape \(\), found \(1,\)"),
        ({"scale": np.array(1)}, "'scale': expected a floating-point type such as float32, found int"),
        ({"mask": np.array(["a", "b"])}, "'mask': expected a real type such as bool, found <U1"),
        ({"mask": np.array([1j, 2j])}, "'mask': expected a real type"),
        ({"norm.running_mean": np.array([0, np.nan, 0])}, "'norm.running_mean': expected finite"),
    ],
)
def test_unusable_arrays_are_named(change, text):
    arrays = {name: array for name, array in (model() | change).items() if array is not None}
    fault = find_fault(arrays, model(), PARAMETERS)
    assert fault is not None
    with pytest.raises(ValueError, match=text):
        raise ValueError(fault)


def test_other_floating_types_are_usable():
    arrays = {n: a.astype("float64") if a.dtype == np.float32 else a for n, a in model().items()}
    assert find_fault(arrays, model(), PARAMETERS) is None


def test_many_missing_names_are_shortened():
    reference = {f"w{i}": np.zeros(1) for i in range(9)}
    assert "and 4 more" in str(find_fault({}, reference, tuple(reference)))


def test_the_first_non_finite_array_is_found():
    arrays = model() | {"scale": np.array(np.inf)}
    assert find_non_finite(arrays, PARAMETERS) == "scale"
    assert find_non_finite(model(), PARAMETERS) is None


def test_buffers_are_averaged_and_keep_type_and_shape():
    reference = model()
    clients = [
        {"norm.running_mean": np.full(3, v), "norm.num_batches_tracked": np.array(n), "mask": np.array([True, m])}
        for v, n, m in [(1.0, 2, True), (5.0, 9, False)]
    ]
    means = mean_of_buffers(reference, clients, BUFFERS, np.array([0.75, 0.25]))
    np.testing.assert_array_equal(means["norm.running_mean"], np.full(3, 2.0, dtype="float32"))
    assert means["norm.num_batches_tracked"] == 4  # 3.75
    np.testing.assert_array_equal(means["mask"], [True, True])
    for name in BUFFERS:
        assert means[name].shape == reference[name].shape
        assert means[name].dtype == reference[name].dtype
