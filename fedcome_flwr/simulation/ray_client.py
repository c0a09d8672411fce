"""What the simulated clients run in Ray's processes."""

from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from .app_folder import load_client_app, read_app_folder
from .fresh_import import fresh_imports
from .observer import ConfigValue
from .reply import checked_reply, error_reply


class RayClientApp(ClientApp):
    """Stands for the app's ClientApp on its way to Ray's processes, and calls it there.

    The app travels as the name of its folder and is imported there first of all, so that the code that runs is the
    code in the folder, whatever else a process finds under the same name. Exceptions become error replies in the
    client's process, in the same words as on the inline grid; Flower's own way wraps them twice, with Ray's
    traceback in colours.

    Parameters
    ----------
    source
        The app's folder, or a ClientApp, which is then pickled.
    run_config
        What clients find in ``context.run_config``; ``run_simulation`` has no way to pass it.
    """

    def __init__(self, source: Path | ClientApp, run_config: Mapping[str, ConfigValue]) -> None:
        super().__init__()
        self._source = source
        self._run_config = dict(run_config)

    def __call__(self, message: Message, context: Context) -> Message:
        """Let the app answer the message."""
        # A context of its own: Flower refuses one that comes back with another run_config.
        own = Context(context.run_id, context.node_id, context.node_config, context.state, dict(self._run_config))
        try:
            client_app = _loaded(self._source) if isinstance(self._source, Path) else self._source
            reply = checked_reply(client_app, message, own)
        except (Exception, SystemExit) as error:  # exit() would end the process, and others' messages with it
            reply = error_reply(error, message)
        context.state = own.state
        return reply


@cache
def _entered(folder: Path) -> ExitStack:
    """The folder's place in this process's imports, never given back: functions import when they are called, too."""
    stack = ExitStack()
    stack.enter_context(fresh_imports(folder))
    return stack


@cache
def _loaded(folder: Path) -> ClientApp:
    _entered(folder)
    return load_client_app(read_app_folder(folder))
