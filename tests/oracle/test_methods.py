"""Every compared method, from server to PyTorch client and back, against its reference of `references`.

Federations of five clients with 1 to 5 local steps and as many examples, half of them asked in each round, some replies
lost on the way back, on a quadratic and on a network of two layers, in float64.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch
from flwr.app import Array, ArrayRecord, Message
from torch import nn

from fedcome_flwr import UpdateStrategy, fedavg, feddc, feddyn, fedfv, fedprox, scaffold
from fedcome_flwr.client import client_app, model_arrays
from fedcome_flwr.client.memory import FileStore
from fedcome_flwr.core import Method, Selection
from fedcome_flwr.simulation import InlineGrid
from tests.oracle.references import feddc as feddc_reference
from tests.oracle.references import feddyn as feddyn_reference
from tests.oracle.references import fedfv as fedfv_reference
from tests.oracle.references import fedprox as fedprox_reference
from tests.oracle.references import scaffold as scaffold_reference

CLIENTS = 5
RATE = 0.1
STEPS = (1, 2, 3, 4, 5)
ASKED = ([0, 1, 2], [1, 3, 4], [0, 2, 4], [0, 1, 3, 4], [2, 3, 4], [0, 1, 2])
LOST = ([], [3], [0], [1, 4], [], [])
Batches = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Problem:
    """A model, and one batch a step for every client; client i's task is its own."""

    build: Callable[[], nn.Module]
    loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    batches: tuple[Batches, ...]

    def model(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            return self.build().double()

    def at(self, vector: np.ndarray) -> nn.Module:
        model = self.model()
        nn.utils.vector_to_parameters(torch.tensor(vector), model.parameters())
        return model

    def gradients(self) -> list[Callable[[np.ndarray, int], np.ndarray]]:
        def gradient(client: int, vector: np.ndarray, step: int) -> np.ndarray:
            model, (inputs, targets) = self.at(vector), self.batches[client][step]
            found = torch.autograd.grad(self.loss_fn(model(inputs), targets), list(model.parameters()))
            return nn.utils.parameters_to_vector(found).numpy()

        return [lambda x, k, client=client: gradient(client, x, k) for client in range(CLIENTS)]

    def losses(self) -> list[Callable[[np.ndarray], float]]:
        def loss(client: int, vector: np.ndarray) -> float:
            model = self.at(vector)
            with torch.no_grad():
                return float(np.mean([float(self.loss_fn(model(a), b)) for a, b in self.batches[client]]))

        return [lambda x, client=client: loss(client, x) for client in range(CLIENTS)]

    @property
    def sizes(self) -> list[int]:
        return [sum(len(targets) for _, targets in batches) for batches in self.batches]


def half_square(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return 0.5 * torch.mean(torch.square(outputs - targets))


def problem(kind: str) -> Problem:
    drawn = np.random.default_rng(11)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.tensor(drawn.normal(size=(6, 4)))
        if kind == "quadratic":
            return inputs, inputs @ torch.tensor(drawn.normal(size=(4, 1)) * 2)
        return inputs, torch.tensor(drawn.integers(0, 3, size=6))

    batches = tuple([batch() for _ in range(steps)] for steps in STEPS)
    if kind == "quadratic":
        return Problem(lambda: nn.Linear(4, 1, bias=False), half_square, batches)
    network = lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))  # noqa: E731
    return Problem(network, nn.functional.cross_entropy, batches)


class Scripted:
    """Asks whom the script says."""

    def __init__(self, rounds: Sequence[Sequence[int]]) -> None:
        self._rounds: Iterator[Sequence[int]] = iter(rounds)

    def choose(self, present: Any, count: int, *, table: Any, rng: Any) -> Selection:
        return Selection(tuple(str(client) for client in next(self._rounds)))

    def observe(self, table: Any, keys: Any, gram: Any) -> Any:
        return table


class Lossy(UpdateStrategy):
    """Loses replies on their way back: the clients have trained, and do not know."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        lost = {str(client) for client in LOST[server_round - 1]}
        arrived: list[Message] = [r for r in replies if self._directory.keys[r.metadata.src_node_id] not in lost]
        return super().aggregate_train(server_round, arrived)


@dataclass
class Played:
    """The models, the server's means, and the clients' memories after every round."""

    x: list[np.ndarray]
    control: list[np.ndarray]
    drift: list[np.ndarray]
    controls: list[list[np.ndarray]]
    drifts: list[list[np.ndarray]]


def vector(arrays: Any, size: int) -> np.ndarray:
    return np.concatenate([np.asarray(a).ravel() for a in arrays.values()]) if arrays else np.zeros(size)


def play(problem: Problem, method: Method, folder: Path, *, reply: str = "model") -> Played:
    played = Played([], [], [], [], [])
    app = client_app(
        problem.model,
        lambda context: (problem.batches[int(context.node_config["partition-id"])],) * 2,
        loss_fn=problem.loss_fn,
        state_dir=folder,
        reply=reply,
        learning_rate=RATE,
        learning_rate_decay=1.0,
        weight_decay=0.0,
    )
    strategy = Lossy(
        method=method, selector=Scripted(ASKED), num_clients=CLIENTS, fraction_evaluate=0.0, min_train_nodes=CLIENTS
    )
    start = model_arrays(problem.model())
    size = sum(array.size for array in start.values())

    def note(server_round: int, arrays: ArrayRecord) -> None:
        if server_round == 0:
            return
        played.x.append(vector({name: array.numpy() for name, array in arrays.items()}, size))
        memory = strategy.state.memory
        played.control.append(vector(memory.control, size) / CLIENTS)
        played.drift.append(vector(memory.drift, size) / CLIENTS)
        stored = [FileStore(folder, str(client)).load() for client in range(CLIENTS)]
        counted = [s.confirmed(0, memory.accepted.get(str(i), 0)) for i, s in enumerate(stored)]
        played.controls.append([vector(memory.accepted.control, size) for memory in counted if memory])
        played.drifts.append([vector(memory.accepted.drift, size) for memory in counted if memory])

    with InlineGrid(app, CLIENTS, debug=True) as grid:
        record = ArrayRecord({name: Array(array) for name, array in start.items()})
        strategy.start(grid, record, num_rounds=len(ASKED), evaluate_fn=note)
    return played


def start(problem: Problem) -> np.ndarray:
    return nn.utils.parameters_to_vector(problem.model().parameters()).detach().numpy()


def reference(module: Any, problem: Problem, **options: Any) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = module.run(
        start(problem), problem.gradients(), ASKED, learning_rate=RATE, steps=STEPS, dropped=LOST, **options
    )
    assert np.abs(found["x"]).max() < 100  # a run that diverges would compare anything with anything
    return found


def same(found: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(np.array(found), expected, rtol=0, atol=1e-9)


each_problem = pytest.mark.parametrize("kind", ["quadratic", "network"])
each_reply = pytest.mark.parametrize("reply", ["model", "pseudo-gradient"])


@each_problem
@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_fedprox(kind: str, mu: float, tmp_path: Path) -> None:
    task = problem(kind)
    expected = reference(fedprox_reference, task, sizes=task.sizes, mu=mu)
    same(play(task, fedprox(mu), tmp_path).x, expected["x"])
    if mu == 0:
        same(play(task, fedavg(), tmp_path).x, expected["x"])


@each_problem
@each_reply
def test_scaffold(kind: str, reply: str, tmp_path: Path) -> None:
    task = problem(kind)
    expected = reference(scaffold_reference, task, n_clients=CLIENTS)
    found = play(task, scaffold(), tmp_path, reply=reply)
    same(found.x, expected["x"])
    same(found.control, expected["c"])
    same(found.controls, expected["c_i"])
    same(found.control, np.mean(found.controls, axis=1))


@each_problem
@each_reply
def test_feddyn(kind: str, reply: str, tmp_path: Path) -> None:
    task, alpha = problem(kind), 0.4
    expected = reference(feddyn_reference, task, n_clients=CLIENTS, alpha=alpha)
    found = play(task, feddyn(alpha), tmp_path, reply=reply)
    same(found.x, expected["x"])
    same(-alpha * np.array(found.drift), expected["h"])
    same(-alpha * np.array(found.drifts), expected["grad_i"])


@each_problem
@each_reply
def test_feddc(kind: str, reply: str, tmp_path: Path) -> None:
    task = problem(kind)
    expected = reference(feddc_reference, task, n_clients=CLIENTS, alpha=0.4)
    found = play(task, feddc(0.4), tmp_path, reply=reply)
    same(found.x, expected["x"])
    same(found.control, expected["state"])
    same(found.controls, expected["state_i"])
    same(found.drifts, expected["h_i"])


@each_problem
@pytest.mark.parametrize("reading", ["paper", "code"])
@pytest.mark.parametrize(("alpha", "tau"), [(0.0, 0), (0.1, 1), (0.5, 1), (0.0, 2), (0.3, 3), (1.0, 2)])
def test_fedfv(kind: str, reading: Any, alpha: float, tau: int, tmp_path: Path) -> None:
    task = problem(kind)
    options = {"losses": task.losses(), "n_clients": CLIENTS, "alpha": alpha, "tau": tau, "reading": reading}
    expected = reference(fedfv_reference, task, **options)
    same(play(task, fedfv(alpha, tau, reading=reading), tmp_path).x, expected["x"])


def test_the_federations_have_what_they_are_to_test(tmp_path: Path) -> None:
    """Conflicts, an external step that matters in both readings, and methods that differ."""
    task = problem("quadratic")
    runs = {
        (method.name, reading): play(task, method, tmp_path / f"{number}").x[-1]
        for number, (reading, method) in enumerate(
            [("", fedavg("uniform")), ("", scaffold()), ("", feddyn(0.4)), ("", feddc(0.4)), ("", fedfv(0.0, 0))]
            + [(reading, fedfv(0.0, 2, reading=reading)) for reading in ("paper", "code")]
        )
    }
    values = list(runs.values())
    for place, one in enumerate(values):
        for other in values[:place]:
            assert np.abs(one - other).max() > 1e-3


def test_feddyns_stationary_point_is_the_minimiser_of_the_sum_for_clients_and_server(tmp_path: Path) -> None:
    """There every client ends where it began, its dual variable is its own gradient, and these add up to nothing.

    FedAvg, with several local steps on data that disagree, rests elsewhere.
    """
    rng = np.random.default_rng(5)
    inputs = [torch.tensor(rng.normal(size=(8, 3))) for _ in range(3)]
    targets = [a @ torch.tensor(rng.normal(size=(3, 1))) for a in inputs]
    grams = [a.numpy().T @ a.numpy() / 8 for a in inputs]
    products = [a.numpy().T @ b.numpy() / 8 for a, b in zip(inputs, targets, strict=True)]
    best = np.linalg.solve(sum(grams), sum(products)).ravel()

    def settle(method: Method) -> tuple[np.ndarray, UpdateStrategy]:
        def data(context: Any) -> Any:
            client = int(context.node_config["partition-id"])
            return ([(inputs[client], targets[client])] * 10,) * 2

        app = client_app(
            lambda: nn.Linear(3, 1, bias=False).double(),
            data,
            loss_fn=half_square,
            state_dir=tmp_path / method.name,
            learning_rate=0.1,
            learning_rate_decay=1.0,
            weight_decay=0.0,
        )
        strategy = UpdateStrategy(method=method, fraction_evaluate=0.0)
        with InlineGrid(app, 3, debug=True) as grid:
            result = strategy.start(grid, ArrayRecord({"weight": Array(np.zeros((1, 3)))}), num_rounds=150)
        return result.arrays["weight"].numpy().ravel(), strategy

    found, strategy = settle(feddyn(0.5))
    np.testing.assert_allclose(found, best, atol=1e-6)
    for client in range(3):
        stored = FileStore(tmp_path / "feddyn", str(client)).load()
        dual = -0.5 * np.asarray(stored.pending.drift["weight"]).ravel()
        gradient = grams[client] @ best - products[client].ravel()
        np.testing.assert_allclose(dual, gradient, atol=1e-5)
    np.testing.assert_allclose(strategy.state.memory.drift["weight"], 0, atol=1e-4)
    assert np.abs(settle(fedavg("uniform"))[0] - best).max() > 1e-2
