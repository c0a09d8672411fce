"""A NumPyClient around local training, for apps of Flower's older kind."""

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar
from torch import nn
from torch.nn.functional import cross_entropy

from ..core.arrays import Arrays
from .arrays import array_names, model_arrays
from .data import Data
from .evaluation import LossFn, MetricsFn, accuracy
from .local_work import LocalWork
from .surroundings import control_in, identity_of, store_of


class FedCOMEClient(NumPyClient):
    """A NumPyClient that trains and evaluates a model as :func:`train_locally` does.

    ::

        def client_fn(context: Context) -> Client:
            return FedCOMEClient(Net(), *load_data(context), context=context).to_client()

        app = ClientApp(client_fn=client_fn, mods=[memory_mod])

    Arrays travel by position, in the order of the model's ``state_dict``. Settings come from the server's
    configuration, under the keys of :func:`client_app`, else from ``settings``. ``fit`` reports the numbers of
    :func:`train_locally`, ``client-id`` (if there is one) and ``reply-kind``: ``"model"``, which any server
    understands, or ``"pseudo-gradient"``.

    Parameters
    ----------
    model
        The network.
    train_data, test_data
        Each as :func:`train_locally` takes it.
    client_id
        A name that stays the same client's, by default ``client-id`` or else ``partition-id`` of the node's
        configuration, if there is a context.
    context
        The context that Flower gives to ``client_fn``. Methods with client memory (SCAFFOLD, FedDyn, FedDC) need it,
        and SCAFFOLD and FedDC also :func:`memory_mod`.
    state_dir
        Folder for this memory, as in :func:`client_app`.
    loss_fn, metrics_fn
        As in :func:`client_app`.
    **settings
        Settings under their Python names, such as ``learning_rate``.
    """

    def __init__(
        self,
        model: nn.Module,
        train_data: Data,
        test_data: Data,
        *,
        client_id: str | None = None,
        context: Context | None = None,
        state_dir: str | Path | None = None,
        loss_fn: LossFn = cross_entropy,
        metrics_fn: MetricsFn = accuracy,
        **settings: Any,
    ) -> None:
        self.model = model
        self.train_data = train_data
        self.test_data = test_data
        self.context = context
        self.client_id = client_id if context is None else identity_of(client_id, context)
        self.state_dir = state_dir
        self._work = LocalWork(loss_fn, metrics_fn, settings)

    def get_parameters(self, config: dict[str, Scalar]) -> NDArrays:
        """The model's arrays."""
        return list(model_arrays(self.model).values())

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train the received model."""
        context = self.context
        result = self._work.train(
            self.model,
            self.train_data,
            self._named(parameters),
            (config,),
            self.client_id,
            control=None if context is None else control_in(context),
            store=None if context is None else store_of(self.state_dir, self.client_id, context),
        )
        metrics: dict[str, Scalar] = {**result.metrics, "reply-kind": result.kind}
        if self.client_id is not None:
            metrics["client-id"] = self.client_id
        if result.memory_round is not None:
            metrics["memory-round"] = result.memory_round
        arrays = [np.asarray(array) for array in result.arrays.values()]
        return arrays, int(result.metrics["num-examples"]), metrics

    def evaluate(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[float, int, dict[str, Scalar]]:
        """Evaluate the received model."""
        metrics = self._work.evaluate(self.model, self.test_data, self._named(parameters), (config,))
        loss, count = metrics.pop("loss"), metrics.pop("num-examples")
        return float(loss), int(count), {**metrics}

    def _named(self, parameters: NDArrays) -> Arrays:
        names = array_names(self.model)
        if len(parameters) != len(names):
            raise ValueError(f"parameters: expected the {len(names)} arrays of the model, found {len(parameters)}")
        return dict(zip(names, parameters, strict=True))
