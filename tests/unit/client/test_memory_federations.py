"""Methods with client memory in whole federations: both kinds of client, memory lost, memory kept on disk."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra torch")

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedProx

from fedcome_flwr import FedCOMEStrategy, UpdateStrategy, fedavg, feddc, feddyn, fedprox, scaffold
from fedcome_flwr.client import FedCOMEClient, client_app, memory_mod
from fedcome_flwr.client.memory import FileStore
from tests.unit.client._federation import STEP, federate, numbers, own_data
from tests.unit.client._models import linear

MEMORY_METHODS = [scaffold(), feddyn(0.3), feddc(0.3)]
each_method = pytest.mark.parametrize("method", MEMORY_METHODS, ids=lambda method: method.name)


def numpy_app(*, mods=(memory_mod,), with_context=True, **options) -> ClientApp:
    def client_fn(context: Context):
        given = {"context": context} if with_context else {"client_id": str(context.node_config["partition-id"])}
        return FedCOMEClient(linear(), *own_data(context), **given, **STEP, **options).to_client()

    return ClientApp(client_fn=client_fn, mods=list(mods))


def strategy(method, **options) -> tuple[UpdateStrategy, list]:
    reports = []
    return UpdateStrategy(method=method, on_round=lambda report: reports.append(report) or None, **options), reports


def final(app, method, rounds=4, debug=True, **options):
    playing, reports = strategy(method, **options)
    result = federate(app, strategy=playing, rounds=rounds, debug=debug)
    return numbers(result.arrays), playing.state, reports


@each_method
def test_numpy_clients_train_as_new_ones_do(method):
    new, state, _ = final(client_app(linear, own_data, **STEP), method, fraction_train=0.7)
    old, other, reports = final(numpy_app(), method, fraction_train=0.7)
    for name in new:
        np.testing.assert_array_equal(old[name], new[name])
    assert list(state.memory.accepted.values()) == list(other.memory.accepted.values())
    assert all(not report.left_out for report in reports)


@each_method
def test_memory_makes_a_difference_and_differs_from_fedavg(method):
    several_steps = STEP | {"batch_size": 4}  # after a single one SCAFFOLD's correction cancels out
    with_memory, _, _ = final(client_app(linear, own_data, **several_steps), method)
    without, _, _ = final(client_app(linear, own_data, **several_steps), fedavg("uniform"))
    assert any(not np.allclose(with_memory[name], without[name], atol=1e-4) for name in without)


@each_method
def test_on_disk_as_in_flowers_state(method, tmp_path):
    in_state, _, _ = final(client_app(linear, own_data, **STEP), method)
    on_disk, state, _ = final(client_app(linear, own_data, state_dir=tmp_path, **STEP), method)
    for name in in_state:
        np.testing.assert_array_equal(on_disk[name], in_state[name])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.npz", "1.npz", "2.npz"]
    assert FileStore(tmp_path, "0").load().pending_round == state.memory.accepted["0"] == 4


def test_an_old_client_is_refused_with_what_to_use():
    _, _, reports = final(numpy_app(mods=(), with_context=False), feddyn(0.1), rounds=1, debug=False)
    [text, *_] = reports[0].left_out.values()
    assert "expected FedCOMEClient(..., context=context), found no context" in text
    assert reports[0].unchanged == "no usable reply"


@pytest.mark.parametrize("method", [scaffold(), feddc(0.3)], ids=lambda method: method.name)
def test_without_the_mod_the_control_variate_is_missed(method):
    _, _, reports = final(numpy_app(mods=()), method, rounds=1, debug=False)
    assert "mods=[fedcome_flwr.client.memory_mod]" in next(iter(reports[0].left_out.values()))


def test_feddyn_needs_no_mod_since_nothing_more_is_sent():
    _, _, reports = final(numpy_app(mods=()), feddyn(0.1), rounds=2)
    assert all(not report.left_out for report in reports)


@each_method
def test_a_client_that_lost_its_memory_sets_all_back_and_training_goes_on(method, tmp_path):
    app = client_app(linear, own_data, state_dir=tmp_path, **STEP)

    def forgetful(message: Message, context: Context) -> Message:
        config = message.content.config_records.get("config", {})
        if config.get("server-round") == 3 and context.node_config["partition-id"] == 1:
            (tmp_path / "1.npz").unlink(missing_ok=True)
        return app(message, context)

    _, state, reports = final(forgetful, method, rounds=5)
    assert [report.memory_epoch for report in reports] == [0, 0, 1, 1, 1]
    assert reports[2].memory_strayed == ("1",)
    assert list(reports[2].clients) == ["0", "2"]
    assert "expected its memory of round 2, found that of round 0" in reports[2].left_out["1"]
    assert all(not report.left_out for report in reports[3:])
    assert dict(state.memory.accepted) == {"0": 5, "1": 5, "2": 5}


def test_a_state_folder_needs_a_name_for_the_client(tmp_path):
    app = client_app(linear, lambda context: own_data(Context(0, 0, {"partition-id": 0}, None, {})), state_dir=tmp_path)
    nameless = ClientApp()

    @nameless.train()
    def train(message: Message, context: Context) -> Message:
        context.node_config.pop("partition-id")
        return app(message, context)

    _, _, reports = final(nameless, feddyn(0.1), rounds=1, debug=False)
    assert all("state_dir: the client needs a name" in text for text in reports[0].left_out.values())


def test_the_folder_can_come_from_the_nodes_or_the_runs_configuration(tmp_path):
    playing, _ = strategy(feddyn(0.1))
    federate(client_app(linear, own_data, **STEP), strategy=playing, run_config={"state-dir": str(tmp_path)})
    assert len(list(tmp_path.iterdir())) == 3


def test_flowers_own_fedprox_pulls_our_clients():
    app = client_app(linear, own_data, **STEP | {"batch_size": 2})
    flower = federate(app, strategy=FedProx(proximal_mu=0.7, fraction_evaluate=0.0), rounds=1)
    assert flower.train_metrics_clientapp[1]["distance-moved"] > 0


def test_fedprox_says_once_that_a_client_does_not_pull(caplog):
    def silent(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if reply.has_content() and "metrics" in reply.content:
            reply.content["metrics"].pop("distance-moved", None)
        return reply

    app = client_app(linear, own_data, **STEP)
    federate(app, strategy=UpdateStrategy(method=fedprox(0.1)))
    assert "proximal term" not in caplog.text
    federate(silent, strategy=UpdateStrategy(method=fedprox(0.1)), rounds=3)
    assert caplog.text.count("make sure that they add the proximal term") == 1


def test_a_method_without_memory_leaves_no_state(tmp_path):
    federate(client_app(linear, own_data, state_dir=tmp_path, **STEP), strategy=FedCOMEStrategy())
    assert list(tmp_path.iterdir()) == []
