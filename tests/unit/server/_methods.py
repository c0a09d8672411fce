"""All seven methods, and clients that answer under each of them."""

import pytest
from flwr.app import Message

from fedcome_flwr import fedavg, fedcome, feddc, feddyn, fedfv, fedprox, scaffold
from tests.unit.server._federation import federation

METHODS = [fedavg(), fedprox(0.1), scaffold(), feddyn(0.1), feddc(0.1), fedfv(0.5, 2), fedcome()]
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)


def remembering():
    """The clients of `federation`, as they would answer under a method with memory: accepted as the server says."""
    app, asked = federation(), []

    def answer(message: Message, context) -> Message:
        reply = app(message, context)
        if message.metadata.message_type == "train":
            config = message.content["config"]
            asked.append((dict(config), message.content))
            reply.content["client"]["memory-round"] = config.get("accepted-round", 0)
            reply.content["metrics"]["step-size-sum"] = 0.1
            reply.content["metrics"]["distance-moved"] = 1.0
        return reply

    return answer, asked
