"""A ready ClientApp around local training."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.clientapp.typing import Mod
from torch import nn
from torch.nn.functional import cross_entropy

from ..core.arrays import Arrays
from ..core.npy import view_npy
from .data import Data, look_at
from .evaluation import LossFn, MetricsFn, accuracy
from .local_work import LocalWork
from .settings import Config
from .surroundings import control_of, identity_of, store_of

ModelFn = Callable[[Context], nn.Module] | Callable[[], nn.Module]
DataFn = Callable[[Context], tuple[Data, Data]]
_CLIP_MODELS = (fixedclipping_mod, adaptiveclipping_mod)  # and LocalDpMod, which is a class


def client_app(
    model_fn: ModelFn,
    data_fn: DataFn,
    *,
    client_id: str | None = None,
    state_dir: str | Path | None = None,
    loss_fn: LossFn = cross_entropy,
    metrics_fn: MetricsFn = accuracy,
    mods: Sequence[Mod] = (),
    **settings: Any,
) -> ClientApp:
    """A ClientApp that trains and evaluates a model as :func:`train_locally` does, for any Flower strategy.

    ::

        app = client_app(Net, load_data, learning_rate=0.1, batch_size=32)

    Each setting comes from the message's ``config``, else from the run configuration, both under kebab-case keys,
    else from ``settings``, else from :func:`train_locally`: ``learning-rate``, ``learning-rate-decay``,
    ``weight-decay``, ``momentum``, ``batch-size``, ``local-epochs``, ``max-grad-norm``, ``amp``, ``device``,
    ``train-loss``, ``train-loss-after``, ``loss-batches``, and ``reply``: ``"model"`` (the default) or
    ``"pseudo-gradient"``, which a strategy of ours understands too. ``server-round`` and ``client-seed`` come from
    strategies.

    The names in the message are the model: send a part of a ``state_dict``, such as adapters, and the other weights
    stay those that ``model_fn`` gives.

    Parameters
    ----------
    model_fn
        ``model_fn(context)``, or without an argument, gives the network. Called for every message; its weights are
        overwritten.
    data_fn
        ``data_fn(context)`` gives the client's training data and test data, each as :func:`train_locally` takes it.
        Called for every message, so keep what is slow to load (``functools.cache``).
    client_id
        A name that stays the same client's, by default ``client-id`` or else ``partition-id`` of the node's
        configuration.
    state_dir
        Folder for what the client remembers under methods with client memory (SCAFFOLD, FedDyn, FedDC), by default
        ``state-dir`` of the node's or else of the run's configuration. One file a client, written atomically, so that
        memory survives restarts. Without a folder it is in Flower's ``context.state``, which lives as long as the node
        in its run.
    loss_fn
        ``(outputs, targets)`` to the mean loss of a batch.
    metrics_fn
        ``(outputs, targets)`` to means over a batch by name, for evaluations; by default the accuracy where targets
        are class numbers.
    mods
        Flower's modifiers of training, such as those for differential privacy; evaluations and queries, which those
        refuse, stay as they are. Flower's own clip the difference to the received model, so that a client with one of
        them refuses ``reply="pseudo-gradient"``, which they would not clip.
    **settings
        Settings under their Python names, such as ``learning_rate``.

    Returns
    -------
    ClientApp
        With ``train``, ``evaluate``, ``query`` and ``query.data``. Training replies an ArrayRecord ``arrays`` or
        ``pseudo-gradient``, evaluation the metrics ``num-examples``, ``loss`` and those of ``metrics_fn``, and
        ``query.data``, with which ``fedcome doctor`` tries the data, ``num-train-examples`` and ``num-test-examples``
        (0 where only reading all would tell); all say ``client-id`` in a ConfigRecord ``client``.
    """
    work = LocalWork(loss_fn, metrics_fn, settings)
    app = ClientApp()

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        data, _ = data_fn(context)
        identity = identity_of(client_id, context)
        result = work.train(
            _model(model_fn, context),
            data,
            _received(message),
            _configs(message, context),
            identity,
            control=control_of(message),
            store=store_of(state_dir, identity, context),
        )
        if result.kind == "pseudo-gradient" and (mod := _clips_models(mods)):
            raise ValueError(
                f"reply: expected 'model' with {mod}, which clips the difference to the received model, "
                "found 'pseudo-gradient', which it would leave as it is"
            )
        record = ArrayRecord({name: Array(np.asarray(array)) for name, array in result.arrays.items()})
        name: str = "arrays" if result.kind == "model" else result.kind
        records: dict[str, ArrayRecord | MetricRecord] = {
            name: record,
            "metrics": MetricRecord({**result.metrics}),
        }
        return _reply(message, identity, records, result.memory_round)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        _, data = data_fn(context)
        metrics = work.evaluate(_model(model_fn, context), data, _received(message), _configs(message, context))
        return _reply(message, identity_of(client_id, context), {"metrics": MetricRecord({**metrics})})

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return _reply(message, identity_of(client_id, context), {})

    @app.query("data")
    def query_data(message: Message, context: Context) -> Message:
        sizes = dict(zip(("num-train-examples", "num-test-examples"), map(look_at, data_fn(context)), strict=True))
        return _reply(message, identity_of(client_id, context), {"metrics": MetricRecord({**sizes})})

    return app


def _model(model_fn: ModelFn, context: Context) -> nn.Module:
    # A class with default values only, such as Net(hidden=64), is to be called without an argument.
    needs_context = any(
        parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        for parameter in inspect.signature(model_fn).parameters.values()
    )
    return model_fn(context) if needs_context else model_fn()  # type: ignore[call-arg]


def _clips_models(mods: Sequence[Mod]) -> str | None:
    """The name of the first of Flower's mods that take the reply for a model."""
    for mod in mods:
        if isinstance(mod, LocalDpMod) or mod in _CLIP_MODELS:
            return getattr(mod, "__name__", type(mod).__name__)
    return None


def _received(message: Message) -> Arrays:
    if "arrays" not in message.content.array_records:
        found = sorted(message.content.array_records) or "none"
        raise ValueError(f"message: expected an ArrayRecord 'arrays', found {found}")
    return {name: view_npy(array.data) for name, array in message.content.array_records["arrays"].items()}


def _configs(message: Message, context: Context) -> tuple[Config, Config]:
    return message.content.config_records.get("config", {}), context.run_config


def _reply(
    message: Message,
    client_id: str | None,
    records: dict[str, ArrayRecord | MetricRecord],
    memory_round: int | None = None,
) -> Message:
    client: dict[str, str | int] = {} if client_id is None else {"client-id": client_id}
    if memory_round is not None:
        client["memory-round"] = memory_round
    content = RecordDict({**records})
    if client:
        content["client"] = ConfigRecord({**client})
    return Message(content, reply_to=message)
