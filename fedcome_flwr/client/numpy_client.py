"""A NumPyClient around local training, for apps of Flower's older kind."""

from typing import Any

from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar
from torch import nn
from torch.nn.functional import cross_entropy

from ..core.arrays import Arrays
from .arrays import array_names, model_arrays
from .data import Data
from .evaluation import LossFn, MetricsFn, accuracy
from .local_work import LocalWork


class FedCOMEClient(NumPyClient):
    """A NumPyClient that trains and evaluates a model as :func:`train_locally` does.

    ::

        def client_fn(context: Context) -> Client:
            return FedCOMEClient(Net(), *load_data(context), client_id="hospital-1").to_client()

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
        A name that stays the same client's.
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
        loss_fn: LossFn = cross_entropy,
        metrics_fn: MetricsFn = accuracy,
        **settings: Any,
    ) -> None:
        self.model = model
        self.train_data = train_data
        self.test_data = test_data
        self.client_id = client_id
        self._work = LocalWork(loss_fn, metrics_fn, settings)

    def get_parameters(self, config: dict[str, Scalar]) -> NDArrays:
        """The model's arrays."""
        return list(model_arrays(self.model).values())

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train the received model."""
        kind, result = self._work.train(self.model, self.train_data, self._named(parameters), (config,), self.client_id)
        metrics: dict[str, Scalar] = {**result.metrics, "reply-kind": kind}
        if self.client_id is not None:
            metrics["client-id"] = self.client_id
        return list(result.arrays.values()), int(result.metrics["num-examples"]), metrics

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
