"""What the inline grid takes from Flower's private modules, as found in flwr 1.42.

If a test fails after an upgrade of Flower, correct `fedcome_flwr/simulation/flower_private.py`. What breaks
otherwise: without the identity, no strategy can create messages outside Flower's processes; without the ids,
no strategy can tell which message a reply answers.
"""

from importlib.metadata import version
from inspect import signature

import pytest
from flwr.app import Context, Message, RecordDict

from fedcome_flwr.simulation import flower_private as flower

TESTED = "1.42"


def test_version_is_a_tested_one():
    if not version("flwr").startswith(f"{TESTED}."):
        pytest.skip(f"these tests describe flwr {TESTED}; they run with {version('flwr')} installed, see the others")


def test_a_message_needs_an_identity_and_gets_one():
    assert not flower.identity_is_set()
    with pytest.raises(RuntimeError, match="TaskIdentity"):
        Message(RecordDict(), 5, "train")
    with flower.server_identity():
        assert flower.identity_is_set()
        message = Message(RecordDict(), 5, "train")
    assert not flower.identity_is_set()
    assert (message.metadata.run_id, message.metadata.src_node_id) == (flower.RUN_ID, 1)


def test_an_identity_that_was_there_comes_back_even_after_an_error():
    with flower.server_identity():
        flower.TaskIdentity.run_id = 77
        with pytest.raises(ZeroDivisionError), flower.server_identity():
            _ = 1 / 0
        assert flower.TaskIdentity.run_id == 77


def test_messages_are_numbered_in_their_metadata():
    with flower.server_identity():
        message = Message(RecordDict(), 5, "train")
        assert message.metadata.message_id == ""  # the SuperLink's task, so ours
        assert flower.number_message(message, "abc") == "abc"
        reply = Message(RecordDict(), reply_to=message)
    assert message.metadata.message_id == reply.metadata.reply_to_message_id == "abc"
    assert (reply.metadata.src_node_id, reply.metadata.dst_node_id) == (5, 1)
    assert flower.number_message(reply) != flower.number_message(reply)


def test_an_error_reply_carries_code_and_reason():
    with flower.server_identity():
        error = flower.Error(flower.CLIENT_APP_RAISED_EXCEPTION, "why")
        reply = Message(error, reply_to=Message(RecordDict(), 5, "train"))
    assert (reply.has_error(), reply.error.code, reply.error.reason) == (True, 2, "why")


def test_run_node_info_and_context_take_what_we_give():
    assert flower.empty_run().run_id == flower.RUN_ID
    info = flower.NodeInfo(node_id=1 << 61, status=flower.ONLINE, registered_at="x", online_until=float("inf"))
    assert info.node_id == 1 << 61
    assert Context(1, 2, {}, RecordDict(), {}).node_id == 2


def test_the_simulation_engine_takes_what_the_ray_backend_gives():
    """`run_simulation` is deprecated; `ray_backend.py` says why it is used, and is the place to replace it."""
    from flwr.simulation import run_simulation

    assert {"server_app", "client_app", "num_supernodes", "backend_config"} <= set(signature(run_simulation).parameters)


def test_the_simulation_engine_passes_unknown_client_resources_to_ray():
    """So a client's process that dies is started again; else its place stays dead and fails every message it draws."""
    pytest.importorskip("ray", reason="needs the extra ray")
    from flwr.server.superlink.fleet.vce.backend.raybackend import RayBackend

    given = {"num_cpus": 1, "num_gpus": 0.0, "max_restarts": -1, "max_task_retries": 1}
    backend = RayBackend.__new__(RayBackend)
    backend.client_resources_key = "client_resources"
    assert backend._validate_client_resources({"client_resources": given}) == given
