"""FedCOME for servers built from ``ServerAppComponents``: the strategy of Flower before the Message API."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.common import (
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    NDArrays,
    Parameters,
    Scalar,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg
from numpy.typing import NDArray

from ..core.arrays import ParameterRule, is_parameter
from ..core.checks import check_share
from ..core.methods import Method, fedcome
from ..core.round_report import RoundReport
from ..core.rounds import aggregate_round
from ..core.selection import ConsensusSelection, Selection, Selector, UniformSelection
from ..core.state import ServerState
from ..core.updates import ClientUpdate
from .identity import Directory
from .instructions import round_config, training_config
from .numpy_records import REPLY_KIND_KEY
from .records import PSEUDO_GRADIENT_KEY, report_metrics
from .round_log import log_round, warn_of_silent_pull

Failure = tuple[ClientProxy, Any] | BaseException
_WAIT = 86400  # seconds, as Flower's own strategies wait for clients


class FedCOMEStrategy(FedAvg):
    """FedCOME in place of :class:`flwr.server.strategy.FedAvg`, for NumPyClients.

    .. code-block:: diff

        - from flwr.server.strategy import FedAvg
        + from fedcome_flwr.server.legacy import FedCOMEStrategy
        - strategy = FedAvg(fraction_fit=0.2)
        + strategy = FedCOMEStrategy(fraction_fit=0.2)

    Takes all that Flower's FedAvg takes and, by keyword, as in :class:`~fedcome_flwr.UpdateStrategy`:

    Parameters
    ----------
    method, selector, seed, on_round
        See :class:`~fedcome_flwr.UpdateStrategy`. ``on_round`` is called after the federated evaluation; returning
        ``True`` leaves the remaining rounds empty, which Flower's server still counts. Methods with client memory
        (SCAFFOLD, FedDyn, FedDC) need :class:`~fedcome_flwr.UpdateStrategy`.
    names
        The names of the model's arrays in order, such as ``list(model.state_dict())``. Without them only integer and
        boolean arrays are known as buffers, and running statistics count as parameters.
    parameters
        Rule that tells parameters from buffers by name and value.
    """

    def __init__(
        self,
        *,
        method: Method | None = None,
        selector: Selector | None = None,
        seed: int = 0,
        names: Sequence[str] | None = None,
        parameters: ParameterRule = is_parameter,
        on_round: Callable[[RoundReport], bool | None] | None = None,
        **fedavg_options: Any,
    ) -> None:
        super().__init__(**fedavg_options)
        check_share("fraction_fit", self.fraction_fit, zero=False)
        check_share("fraction_evaluate", self.fraction_evaluate)
        self.method = method if method is not None else fedcome()
        if self.method.rule.has_memory:
            raise ValueError(
                f"method: {self.method.name} keeps a memory on clients, which needs Flower's Message API: use "
                "fedcome_flwr.UpdateStrategy in a ServerApp with a main function"
            )
        self.selector = selector if selector is not None else ConsensusSelection()
        self.seed = seed
        self.names = names
        self.parameters = parameters
        self.on_round = on_round
        self.state = ServerState()
        self._directory = Directory()
        self._keys: dict[str, str] = {}
        self._twins: dict[str, str] = {}
        self._selection = Selection(())
        self._broadcast: dict[str, NDArray[Any]] = {}
        self._report: RoundReport | None = None
        self._ended = False
        self._warned_of_pull = False

    def __repr__(self) -> str:
        """The strategy's name and method."""
        return f"FedCOMEStrategy(method={self.method})"

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Choose the round's clients and give each a config of its own."""
        if self._ended:
            return []
        count, _ = self.num_fit_clients(client_manager.num_available())
        clients = self._clients(client_manager, max(count, self.min_available_clients))
        rng = np.random.default_rng((self.seed, self.state.round + 1))
        self._selection = self.selector.choose(sorted(clients), count, table=self.state.table, rng=rng)
        self._broadcast = self._named(parameters_to_ndarrays(parameters))
        config = self.on_fit_config_fn(server_round) if self.on_fit_config_fn is not None else {}
        return [(clients[key], FitIns(parameters, self._config(config, key))) for key in self._selection.keys]

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Aggregate the results; a bad one is left out and named, and never stops the others."""
        if self._ended or (failures and not self.accept_failures):
            return None, {}
        refused = self._twins | self._failed(failures)
        updates, by_key = [], {}
        for client, result in sorted(results, key=lambda pair: self._keys[pair[0].cid]):
            key = self._keys[client.cid]
            try:
                updates.append(self._update(key, result))
                by_key[key] = result
            except ValueError as error:
                refused[key] = str(error)
        outcome = aggregate_round(
            self.state,
            self._broadcast,
            updates,
            self.method,
            selector=self.selector,
            selection=self._selection,
            refused=refused,
            parameters=self.parameters,
        )
        self.state, self._report = outcome.state, outcome.report
        log_round(outcome.report)
        self._warned_of_pull = self._warned_of_pull or warn_of_silent_pull(self.method, outcome.report)
        metrics: dict[str, Scalar] = {}
        usable = [by_key[key] for key in outcome.report.clients]
        if self.fit_metrics_aggregation_fn is not None and usable:
            metrics |= self.fit_metrics_aggregation_fn([(result.num_examples, result.metrics) for result in usable])
        metrics |= report_metrics(outcome.report)
        if outcome.report.unchanged is not None:
            return None, metrics
        return ndarrays_to_parameters([np.asarray(array) for array in outcome.arrays.values()]), metrics

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Choose who evaluates, uniformly."""
        if self._ended or self.fraction_evaluate == 0.0:
            return []
        count, _ = self.num_evaluation_clients(client_manager.num_available())
        clients = self._clients(client_manager, max(count, self.min_available_clients))
        rng = np.random.default_rng((self.seed, self.state.round, 1))  # 1: not the training round's draws
        chosen = UniformSelection().choose(sorted(clients), count, table=self.state.table, rng=rng)
        config = self.on_evaluate_config_fn(server_round) if self.on_evaluate_config_fn is not None else {}
        return [(clients[key], EvaluateIns(parameters, dict(config))) for key in chosen.keys]

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Average the losses as Flower does, in the order of the keys, and end the round."""
        if self._ended:
            return None, {}
        ordered = sorted(results, key=lambda pair: self._keys[pair[0].cid])
        loss, metrics = super().aggregate_evaluate(server_round, ordered, failures)
        self._ended = bool(self._report is not None and self.on_round is not None and self.on_round(self._report))
        return loss, metrics

    def _clients(self, client_manager: ClientManager, needed: int) -> dict[str, ClientProxy]:
        """The clients by key, waiting for as many as are needed, as Flower does.

        Flower's proxies know the grid, which tells one node from another; others are known by their ``cid``.
        """
        client_manager.wait_for(needed, _WAIT)
        proxies = dict(client_manager.all())
        grids = {id(grid): grid for proxy in proxies.values() if (grid := getattr(proxy, "grid", None)) is not None}
        self._keys = {cid: cid for cid in proxies}
        for grid in grids.values():
            nodes, self._twins = self._directory.refresh(grid)
            self._keys |= {str(node_id): key for key, node_id in nodes.items()}
        return {self._keys[cid]: proxy for cid, proxy in proxies.items() if self._keys[cid] not in self._twins}

    def _config(self, config: dict[str, Scalar], key: str) -> dict[str, Scalar]:
        server_round = self.state.round + 1
        ours = round_config(self.seed, server_round, key) | training_config(self.method, self.state.memory, key)
        return {**config, **ours}

    def _named(self, arrays: NDArrays) -> dict[str, NDArray[Any]]:
        names = self.names if self.names is not None else [str(place) for place in range(len(arrays))]
        if len(names) != len(arrays):
            raise ValueError(f"expected the model's {len(names)} arrays in their order, found {len(arrays)}")
        return dict(zip(names, arrays, strict=True))

    def _update(self, key: str, result: FitRes) -> ClientUpdate:
        arrays = parameters_to_ndarrays(result.parameters)
        if len(arrays) != len(self._broadcast):
            raise ValueError(
                f"expected the {len(self._broadcast)} arrays of the model in their order, found {len(arrays)}"
            )
        return ClientUpdate(
            key=key,
            arrays=dict(zip(self._broadcast, arrays, strict=True)),
            num_examples=float(result.num_examples),
            kind="pseudo-gradient" if result.metrics.get(REPLY_KIND_KEY) == PSEUDO_GRADIENT_KEY else "arrays",
            metrics={name: float(value) for name, value in result.metrics.items() if isinstance(value, int | float)},
        )

    def _failed(self, failures: Sequence[Failure]) -> dict[str, str]:
        """Why clients failed, as far as Flower says who it was; the others count as missing."""
        known = [failure for failure in failures if isinstance(failure, tuple)]
        return {
            self._keys[client.cid]: f"expected status OK, found {result.status.code.name}: {result.status.message}"
            for client, result in known
        }
