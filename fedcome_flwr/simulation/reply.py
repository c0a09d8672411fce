"""What a simulated SuperNode sends back, wherever its ClientApp runs."""

import re
import traceback

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from . import flower_private as flower

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_TRACEBACK_FRAMES = 6  # enough to reach from the ClientApp's function into the library call that failed


def checked_reply(client_app: ClientApp, message: Message, context: Context) -> Message:
    """Return the ClientApp's reply, which must be a reply to this message."""
    reply = client_app(message, context)
    if not isinstance(reply, Message):
        raise TypeError(f"the ClientApp must return a Message, got {type(reply).__name__}")
    if reply.metadata.reply_to_message_id != message.metadata.message_id:
        raise ValueError("the ClientApp must return Message(..., reply_to=message) for its message")
    return reply


def error_reply(error: BaseException, message: Message) -> Message:
    """Return the error reply of a client that raised; the first line of its reason is the exception."""
    return Message(flower.Error(flower.CLIENT_APP_RAISED_EXCEPTION, _reason(error)), reply_to=message)


def _reason(error: BaseException) -> str:
    """The exception first, since logs are cut, then its last frames."""
    headline = "".join(traceback.format_exception_only(error)).strip()
    frames = "".join(traceback.format_exception(error, limit=-_TRACEBACK_FRAMES)).rstrip()
    return _ANSI.sub("", f"{headline}\n{frames}")
