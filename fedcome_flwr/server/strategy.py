"""The strategies: Flower's FedAvg with a method and a selection of ours."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from ..core.arrays import Arrays, ParameterRule, is_parameter, split_names
from ..core.checks import check_at_least, check_positive_or_none, check_share
from ..core.methods import Method, fedavg, fedcome
from ..core.round_report import OnRound, RoundReport
from ..core.rounds import aggregate_round
from ..core.selection import ConsensusSelection, Selection, Selector, UniformSelection, share_of
from ..core.state import ServerState
from .checkpoint import Checkpoint, CheckpointFile, check_model, check_settings, load_checkpoint, settings_of
from .identity import Directory
from .instructions import memory_note, round_config, training_config
from .numpy_records import instruction_records
from .patience import Patience
from .records import (
    CONTROL_KEY,
    comparable,
    report_metrics,
    single_numbers,
    to_arrays,
    to_record,
)
from .replies import expected_replies, read_evaluations, read_updates
from .round_log import log_round, warn_of_silent_pull

_log = getLogger("flwr")

ClientConfig = Callable[[str, int], Mapping[str, Any]]
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class UpdateStrategy(FedAvg):
    """Flower's FedAvg with any method's weighting and any client selection.

    Takes all that :class:`flwr.serverapp.strategy.FedAvg` takes and, by keyword:

    Parameters
    ----------
    method
        How pseudo-gradients become an update, such as :func:`~fedcome_flwr.fedcome` or
        :func:`~fedcome_flwr.fedavg` (the default).
    selector
        Who takes part: :class:`~fedcome_flwr.UniformSelection` (the default),
        :class:`~fedcome_flwr.ConsensusSelection` or your own.
    seed
        Fixes every draw: cohorts come from ``(seed, round)``, and each client gets a ``client-seed`` of its own in
        its config. Flower's global random state is not used.
    parameters
        Rule that tells parameters from buffers, by default
        :func:`~fedcome_flwr.core.is_parameter`.
    client_config
        ``client_config(key, round)`` gives values for one client's config, on top of ``train_config``.
    num_clients
        N, the number of all clients of the federation, by which methods with client memory (SCAFFOLD, FedDyn, FedDC)
        divide their sums over all clients. By default the number of clients that are online or have been asked before.
    checkpoint
        File for the model and all that the server remembers, written atomically at the end of a round and of the
        training. Files before it are kept as ``checkpoint.1``, ….
    checkpoint_every
        Rounds from one checkpoint to the next; 1 for methods with client memory, whose clients count on the server to
        remember what it told them.
    checkpoint_keep
        How many checkpoints to keep, the newest included; with one, a damaged file is the end.
    resume
        ``True``: go on from ``checkpoint`` if the file is there. A path: go on from that file. ``num_rounds`` of
        ``start`` then counts the rounds from the very beginning.
    node_timeout
        Seconds to wait for enough nodes to be online before giving up; ``None`` waits for ever, as Flower does.
    patience
        Rounds in a row without any usable reply after which the training stops with an error that gives the first
        reason; ``None`` goes on.
    authenticated
        Whether SuperNodes authenticate, though none was registered with a name: clients are then known by their public
        keys, and what they say of themselves does not count. Where a node has a name this is so anyway.
    on_round
        Called with the round's report once the round has been evaluated. Returning ``True`` ends training and keeps
        the result.

    Attributes
    ----------
    state
        All that the server remembers beside the model.
    """

    def __init__(
        self,
        *fedavg_args: Any,
        method: Method | None = None,
        selector: Selector | None = None,
        seed: int = 0,
        parameters: ParameterRule = is_parameter,
        client_config: ClientConfig | None = None,
        num_clients: int | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 1,
        checkpoint_keep: int = 2,
        resume: bool | str | Path = False,
        node_timeout: float | None = 3600.0,
        patience: int | None = 5,
        authenticated: bool = False,
        on_round: OnRound | None = None,
        **fedavg_options: Any,
    ) -> None:
        super().__init__(*fedavg_args, **fedavg_options)
        check_share("fraction_train", self.fraction_train, zero=False)
        check_share("fraction_evaluate", self.fraction_evaluate)
        check_positive_or_none("node_timeout", node_timeout)
        check_at_least("num_clients", num_clients if num_clients is not None else 1, 1)
        self.method = method if method is not None else fedavg()
        if checkpoint_every > 1 and self.method.rule.has_memory:
            raise ValueError(
                f"checkpoint_every: expected 1 for {self.method.name}, found {checkpoint_every}: its clients' memories "
                "move with the server's in every round"
            )
        self.selector = selector if selector is not None else UniformSelection()
        self.seed = seed
        self.parameters = parameters
        self.client_config = client_config
        self.num_clients = num_clients
        self.checkpoint = CheckpointFile(checkpoint, every=checkpoint_every, keep=checkpoint_keep, resume=resume)
        self.node_timeout = node_timeout
        self.on_round = on_round
        self.state = ServerState()
        self._directory = Directory(authenticated=authenticated)
        self._asked: dict[int, str] = {}
        self._broadcast: Arrays = {}
        self._control: ArrayRecord | None = None
        self._all_clients = 1
        self._warned_of_pull = False
        self._selection = Selection(())
        self._twins: dict[str, str] = {}
        self._report: RoundReport | None = None
        self._patience = Patience(patience)
        self._ended = False
        self._reports_after_evaluate_fn = False

    def summary(self) -> None:
        """Log the strategy's settings."""
        super().summary()
        _log.info("\t├──> Method: %s", self.method)
        _log.info("\t└──> Selection: %s, seed %d", self.selector, self.seed)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Train as Flower's ``start`` does.

        Round numbers go on from the last call's, or from the checkpoint's; in Flower's result they begin with 1. After
        ``on_round`` returned ``True`` the remaining rounds are empty. When nothing was trained the result's arrays are
        the initial ones.

        Raises
        ------
        CheckpointError
            The checkpoint to go on from is of another model or of other settings.
        TimeoutError
            Too few nodes came online in ``node_timeout`` seconds.
        NoUsableReplyError
            No client's reply could be used in ``patience`` rounds in a row.
        """
        if (path := self.checkpoint.take_resume()) is not None:
            restored = self.restore(path)
            check_model(to_arrays(restored), to_arrays(initial_arrays), path)
            initial_arrays, num_rounds = restored, max(0, num_rounds - self.state.round)
            _log.info("fedcome: going on after round %d of %s, %d rounds to go", self.state.round, path, num_rounds)
        self._ended = False
        self._patience.forget()
        self._reports_after_evaluate_fn = evaluate_fn is not None
        if note := memory_note(self.method, to_arrays(initial_arrays), self.parameters):
            _log.info("fedcome: %s", note)
        result = super().start(
            grid,
            initial_arrays,
            num_rounds,
            timeout,
            train_config,
            evaluate_config,
            self._wrapped(evaluate_fn) if evaluate_fn is not None else None,
        )
        self._broadcast = {}
        if not result.arrays:  # Flower leaves them empty, and a model that did not change is no empty model
            result.arrays = initial_arrays
        self.checkpoint.save(self._checkpoint(to_arrays(result.arrays)), final=True)
        return result

    def restore(self, path: str | Path) -> ArrayRecord:
        """Take over the state of a checkpoint and return its model, for ``start(grid, initial_arrays, …)``.

        Raises
        ------
        FileNotFoundError
            There is no such file.
        DamagedFileError
            Neither the file nor one before it is what was written.
        CheckpointError
            It was written with another method, selection or seed; the text names the differences.
        """
        path = Path(path)
        found = load_checkpoint(path)
        check_settings(found.settings, settings_of(self.method, self.selector, self.seed), path)
        self.state = found.state
        self.checkpoint.saved_round = found.state.round
        return to_record(found.arrays)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the round's clients and write each its own message."""
        if self._ended:
            return []
        server_round = self.state.round + 1
        nodes = self._nodes(grid, self.min_train_nodes)
        count = max(share_of(len(nodes), self.fraction_train), self.min_train_nodes)
        rng = np.random.default_rng((self.seed, server_round))
        self._selection = self.selector.choose(sorted(nodes), count, table=self.state.table, rng=rng)
        self._broadcast = to_arrays(arrays)
        self._asked = {nodes[key]: key for key in self._selection.keys}
        if self.method.rule.has_memory or self.num_clients is not None:
            self._all_clients = self._population(nodes)
        if self.method.rule.control:
            names, _ = split_names(self._broadcast, self.parameters)
            self._control = to_record(self.state.memory.control_variate(self._broadcast, names, self._all_clients))
        return [
            self._message(nodes[key], key, server_round, MessageType.TRAIN, arrays, config)
            for key in self._selection.keys
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the replies; a bad one is left out and named, and never stops the others.

        The replies lose their arrays, so that the memory is free before the next round.
        """
        if self._ended:
            return None, None
        received = replies if isinstance(replies, list) else list(replies)
        expected, strays = expected_replies(received, self._asked, _group("train", self.state.round + 1))
        self._directory.learn(expected)
        updates, contents, refused = read_updates(
            expected,
            self._asked,
            tuple(self._broadcast),
            arrays_key=self.arrayrecord_key,
            weight_key=self.weighted_by_key,
        )
        for reply in received:  # which stay in the list: Flower's adaptive clipping counts them afterwards
            for name in list(reply.content.array_records) if reply.has_content() else ():
                del reply.content[name]
        expected.clear()
        outcome = aggregate_round(
            self.state,
            self._broadcast,
            updates,
            self.method,
            selector=self.selector,
            selection=self._selection,
            refused=self._twins | refused,
            parameters=self.parameters,
            num_clients=max(self._all_clients, len(updates)) if self.method.rule.has_memory else None,
        )
        report = replace(outcome.report, stray_replies=strays)
        self.state, self._report = outcome.state, report
        log_round(report)
        self.checkpoint.save(self._checkpoint(outcome.arrays))
        self._patience.learn(report)
        self._warned_of_pull = self._warned_of_pull or warn_of_silent_pull(self.method, report)
        usable = [contents[key] for key in report.clients]
        metrics = MetricRecord()
        if usable:
            metrics = self.train_metrics_aggr_fn(comparable(usable, self.weighted_by_key), self.weighted_by_key)
        metrics.update(report_metrics(report))
        changed = report.unchanged is None
        return to_record(outcome.arrays) if changed else None, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose who evaluates, uniformly, and write each its own message."""
        if self._ended or self.fraction_evaluate == 0.0:
            return []
        nodes = self._nodes(grid, self.min_evaluate_nodes)
        count = max(share_of(len(nodes), self.fraction_evaluate), self.min_evaluate_nodes)
        rng = np.random.default_rng((self.seed, self.state.round, 1))  # 1: not the training round's draws
        chosen = UniformSelection().choose(sorted(nodes), count, table=self.state.table, rng=rng)
        self._asked = {nodes[key]: key for key in chosen.keys}
        return [
            self._message(nodes[key], key, self.state.round, MessageType.EVALUATE, arrays, config)
            for key in chosen.keys
        ]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the clients' metrics; a bad reply is left out, named and counted."""
        if self._ended:
            return None
        expected, _ = expected_replies(list(replies), self._asked, _group("evaluate", self.state.round))
        evaluations, contents, refused = read_evaluations(expected, self._asked, weight_key=self.weighted_by_key)
        for key, reason in refused.items():
            _log.warning("fedcome round %d: evaluation of client %s left out: %s", self.state.round, key, reason)
        if self._report is not None:
            self._report = replace(self._report, evaluations=evaluations, evaluation_left_out=refused)
        metrics_record = None
        if contents:
            metrics_record = self.evaluate_metrics_aggr_fn(
                comparable(contents, self.weighted_by_key), self.weighted_by_key
            )
        if not self._reports_after_evaluate_fn:
            self._finish_round()
        return metrics_record

    def _wrapped(self, evaluate_fn: EvaluateFn) -> EvaluateFn:
        """The user's function with absolute round numbers; not called once training has ended."""
        start = self.state.round

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            if self._ended:
                return None
            metrics = evaluate_fn(start + server_round, arrays)
            if server_round > 0:
                if self._report is not None and metrics is not None:
                    self._report = replace(self._report, server_metrics=single_numbers(metrics))
                self._finish_round()
            return metrics

        return evaluate

    def _finish_round(self) -> None:
        report, self._report = self._report, None
        if report is not None and self.on_round is not None and self.on_round(report):
            _log.info("fedcome round %d: on_round ends the training", report.round)
            self._ended = True

    def _nodes(self, grid: Grid, needed: int) -> dict[str, int]:
        """Node id by client key, of the nodes online, waiting for as many as are needed."""
        nodes, self._twins = self._directory.wait(grid, max(needed, self.min_available_nodes), self.node_timeout)
        return nodes

    def _checkpoint(self, arrays: Arrays) -> Checkpoint:
        return Checkpoint(arrays, self.state, settings_of(self.method, self.selector, self.seed))

    def _population(self, online: Mapping[str, int]) -> int:
        """N: as given, else the number of clients that are online or have been asked before."""
        known = len(online.keys() | self.state.times_chosen.keys())
        if self.num_clients is not None and self.num_clients < known:
            raise ValueError(
                f"num_clients: expected at least the {known} clients seen so far, found {self.num_clients}"
            )
        return self.num_clients if self.num_clients is not None else known

    def _message(
        self, node_id: int, key: str, server_round: int, kind: str, arrays: ArrayRecord, config: ConfigRecord
    ) -> Message:
        own = self.client_config(key, server_round) if self.client_config is not None else {}
        ours = round_config(self.seed, server_round, key)
        training = kind == MessageType.TRAIN
        if training:
            ours |= training_config(self.method, self.state.memory, key)
        try:
            record = ConfigRecord({**config, **own, **ours})
        except (TypeError, ValueError) as error:
            raise ValueError(f"client_config for client {key!r}: Flower cannot carry {dict(own)!r}: {error}") from error
        dialect = self._directory.dialect(node_id)
        content: dict[str, ArrayRecord | MetricRecord | ConfigRecord] = {}
        if dialect != "numpy":
            content |= {self.arrayrecord_key: arrays, self.configrecord_key: record}
        if dialect != "message":
            content |= instruction_records(kind, arrays, record)
        if training and self._control is not None:
            content[CONTROL_KEY] = self._control
        return Message(RecordDict(content), node_id, kind, group_id=_group(kind, server_round))


def _group(kind: str, server_round: int) -> str:
    """What a round's messages and the replies to them have in common."""
    return f"{kind}-{server_round}"


class FedCOMEStrategy(UpdateStrategy):
    """FedCOME: consensus aggregation and consensus selection, in place of Flower's FedAvg.

    .. code-block:: diff

        - from flwr.serverapp.strategy import FedAvg
        + from fedcome_flwr import FedCOMEStrategy
        - strategy = FedAvg(fraction_train=0.2)
        + strategy = FedCOMEStrategy(fraction_train=0.2)

    The same as :class:`UpdateStrategy` with ``method=fedcome()`` and ``selector=ConsensusSelection()``.
    """

    def __init__(
        self,
        *fedavg_args: Any,
        method: Method | None = None,
        selector: Selector | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            *fedavg_args,
            method=method if method is not None else fedcome(),
            selector=selector if selector is not None else ConsensusSelection(),
            **options,
        )
