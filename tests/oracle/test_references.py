"""The reference methods against facts that are known without them: fixed points, identities, rounds done by hand."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.oracle.references import Gradient, Loss, Rounds, Vector, feddc, feddyn, fedfv, fedprox, scaffold

N = 5
STEPS = [1, 4, 2, 7, 3]  # clients of unequal size
ALL = range(N)
SOME: Rounds = [[0, 1, 2], [3, 1], [4, 0], [2, 3, 4], [1, 0], [3, 4]] * 4
LOST: Rounds = [[], [1], [], [2, 4], [1, 0], []] * 3  # shorter than SOME; one round is lost as a whole


class Quadratics:
    """Losses (x - b_i)' A_i (x - b_i) / 2 of clients that disagree in curvature and in minimiser; full gradients."""

    def __init__(self, clients: int = N, size: int = 3, noise: float = 0.0) -> None:
        rng = np.random.default_rng(7)
        roots = rng.normal(size=(clients, size, size))
        self.A = roots @ roots.transpose(0, 2, 1) / size + 0.3 * np.eye(size)
        self.b = rng.normal(size=(clients, size)) * 2
        self.noise = rng.normal(size=(clients, max(STEPS), size)) * noise  # of the mini-batch of local step k
        self.x0 = rng.normal(size=size)
        self.seen: list[tuple[int, Vector, Vector]] = []  # client, point, gradient of every call

    def gradients(self) -> list[Gradient]:
        def gradient(i: int) -> Gradient:
            def at(x: Vector, k: int) -> Vector:
                value = self.A[i] @ (x - self.b[i]) + self.noise[i, k % max(STEPS)]
                self.seen.append((i, x.copy(), value))
                return value

            return at

        return [gradient(i) for i in range(len(self.A))]

    def gradient_of(self, i: int, x: Vector) -> Vector:
        return self.A[i] @ (x - self.b[i])

    def minimiser_of_mean(self) -> Vector:
        return np.linalg.solve(self.A.sum(0), np.einsum("nij,nj->i", self.A, self.b))


def test_fedprox_with_many_steps_minimises_the_proximal_objective() -> None:
    # (A + mu) w = A b + mu w^t is where the gradient of F(w) + mu/2 ||w - w^t||^2 vanishes.
    problem, mu = Quadratics(clients=1), 0.8
    found = fedprox.run(problem.x0, problem.gradients(), [[0]], learning_rate=0.1, steps=[2000], sizes=[3], mu=mu)
    expected = np.linalg.solve(problem.A[0] + mu * np.eye(3), problem.A[0] @ problem.b[0] + mu * problem.x0)
    np.testing.assert_allclose(found["x"][0], expected, rtol=1e-12)


@pytest.mark.parametrize("mu", [0.0, 0.8])
def test_fedprox_converges_to_its_weighted_fixed_point(mu: float) -> None:
    # A client's K steps from w are affine: w_k = b_k' + M^K (w - b_k'), with b_k' the proximal minimiser for w.
    problem, eta, sizes = Quadratics(), 0.1, [5.0, 20.0, 10.0, 35.0, 15.0]
    found = fedprox.run(
        problem.x0, problem.gradients(), [ALL] * 500, learning_rate=eta, steps=STEPS, sizes=sizes, mu=mu
    )
    left, right = np.eye(3), np.zeros(3)
    for i, p in enumerate(np.array(sizes) / sum(sizes)):
        damped = problem.A[i] + mu * np.eye(3)
        power = np.linalg.matrix_power(np.eye(3) - eta * damped, STEPS[i])
        pull = np.linalg.solve(damped, np.eye(3))
        left -= p * (power + mu * (np.eye(3) - power) @ pull)
        right += p * (np.eye(3) - power) @ pull @ problem.A[i] @ problem.b[i]
    np.testing.assert_allclose(found["x"][-1], np.linalg.solve(left, right), rtol=1e-9)
    assert (
        np.linalg.norm(found["x"][-1] - problem.minimiser_of_mean()) > 0.05
    )  # it is not what SCAFFOLD and FedDyn find


def test_scaffold_with_all_clients_and_one_step_is_gradient_descent_on_the_mean() -> None:
    problem, eta = Quadratics(), 0.1
    found = scaffold.run(problem.x0, problem.gradients(), [ALL] * 20, learning_rate=eta, steps=[1] * N, n_clients=N)
    x = problem.x0
    for t in range(20):
        each = np.array([problem.gradient_of(i, x) for i in range(N)])
        np.testing.assert_allclose(found["c_i"][t], each, atol=1e-12)  # option II with one step: the gradient at x
        x = x - eta * each.mean(0)
        np.testing.assert_allclose(found["x"][t], x, atol=1e-12)


@pytest.mark.parametrize("dropped", [(), LOST], ids=["all replies", "lost replies"])
def test_scaffold_controls(dropped: Rounds) -> None:
    """The server's is the mean of the clients', and a client's is the mean of its last round's gradients."""
    problem = Quadratics(noise=0.5)
    found = scaffold.run(
        problem.x0, problem.gradients(), SOME, learning_rate=0.1, steps=STEPS, n_clients=N, dropped=dropped
    )
    np.testing.assert_allclose(found["c"], found["c_i"].mean(1), atol=1e-12)
    expected = np.zeros((N, 3))
    calls = iter(problem.seen)
    for t, asked in enumerate(SOME):
        for i in [i for i in asked if i not in (dropped[t] if t < len(dropped) else [])]:
            expected[i] = np.mean([next(calls)[2] for _ in range(STEPS[i])], axis=0)
        np.testing.assert_allclose(found["c_i"][t], expected, atol=1e-12)


def test_scaffold_finds_the_minimiser_of_the_mean_though_steps_differ() -> None:
    problem = Quadratics()
    found = scaffold.run(problem.x0, problem.gradients(), SOME * 100, learning_rate=0.05, steps=STEPS, n_clients=N)
    np.testing.assert_allclose(found["x"][-1], problem.minimiser_of_mean(), rtol=1e-8)
    np.testing.assert_allclose(found["c"][-1], 0, atol=1e-8)


@pytest.mark.parametrize("participants", [[ALL] * 2000, SOME * 150], ids=["all clients", "some clients"])
def test_feddyn_fixed_point(participants: Rounds) -> None:
    problem = Quadratics()
    found = feddyn.run(
        problem.x0, problem.gradients(), participants, learning_rate=0.05, steps=STEPS, n_clients=N, alpha=0.5
    )
    x = found["x"][-1]
    each = np.array([problem.gradient_of(i, x) for i in range(N)])
    np.testing.assert_allclose(found["grad_i"][-1], each, atol=1e-8)
    np.testing.assert_allclose(each.mean(0), 0, atol=1e-8)
    assert np.abs(each).max() > 0.5  # the clients do disagree
    np.testing.assert_allclose(x, problem.minimiser_of_mean(), atol=1e-8)


def test_feddyn_server_state_is_the_mean_of_the_stored_gradients() -> None:
    problem, alpha = Quadratics(noise=0.5), 0.5
    found = feddyn.run(
        problem.x0, problem.gradients(), SOME, learning_rate=0.1, steps=STEPS, n_clients=N, alpha=alpha, dropped=LOST
    )
    np.testing.assert_allclose(found["h"], found["grad_i"].mean(1), atol=1e-12)
    # As in the authors' code: broadcast = mean of the participants + mean over all clients of -grad_i / alpha.
    before = np.concatenate([[problem.x0], found["x"]])
    stored = np.concatenate([np.zeros((1, N, 3)), found["grad_i"]])
    for t, asked in enumerate(SOME):
        arrived = [i for i in asked if i not in (LOST[t] if t < len(LOST) else [])]
        absent = [i for i in range(N) if i not in arrived]
        np.testing.assert_array_equal(stored[t + 1, absent], stored[t, absent])
        if arrived:
            models = before[t] - (stored[t + 1, arrived] - stored[t, arrived]) / alpha
            np.testing.assert_allclose(before[t + 1], models.mean(0) - stored[t + 1].mean(0) / alpha, atol=1e-12)


def test_feddyn_with_exact_local_minimisers_stores_their_gradients() -> None:
    # First-order condition of the local objective: grad L(w) = grad_i_prev - alpha (w - w_prev), Algorithm 1's update.
    problem = Quadratics(clients=2)
    found = feddyn.run(
        problem.x0, problem.gradients(), [[0], [0]], learning_rate=0.1, steps=[2000] * 2, n_clients=2, alpha=0.5
    )
    for t in (0, 1):
        np.testing.assert_allclose(found["grad_i"][t, 0], problem.seen[2000 * (t + 1) - 1][2], atol=1e-10)


def feddc_run(problem: Quadratics, alpha: float, dropped: Rounds = LOST, **options: float) -> dict[str, Vector]:
    return feddc.run(
        problem.x0,
        problem.gradients(),
        SOME,
        learning_rate=0.05,
        steps=STEPS,
        n_clients=N,
        alpha=alpha,
        dropped=dropped,
        **options,
    )


def test_feddc_sums() -> None:
    """State: mean of the clients'. Broadcast: mean model + mean drift. Drift: all of the client's steps, summed."""
    problem, alpha = Quadratics(noise=0.5), 0.3
    found = feddc_run(problem, alpha)
    np.testing.assert_allclose(found["state"], found["state_i"].mean(1), atol=1e-12)
    np.testing.assert_allclose(found["x"][0], found["mean"][0] + found["h_i"][0].mean(0), atol=1e-12)
    x, drift, state = problem.x0, np.zeros((N, 3)), np.zeros((N, 3))
    calls = iter(problem.seen)
    for t, asked in enumerate(SOME):
        arrived = [i for i in asked if i not in (LOST[t] if t < len(LOST) else [])]
        correction = found["state"][t - 1] if t else np.zeros(3)
        models = []
        for i in arrived:
            visited = [next(calls) for _ in range(STEPS[i])]
            seen = [g + alpha * (w - x + drift[i]) for _, w, g in visited]
            w = x - 0.05 * np.sum([s + correction - state[i] for s in seen], axis=0)
            # Unlike SCAFFOLD's control, the state of a client contains the penalty's gradient.
            state[i] = np.mean(seen, axis=0)
            models.append(w)
        for i, w in zip(arrived, models, strict=True):
            drift[i] += w - x
        if arrived:
            np.testing.assert_allclose(found["mean"][t], np.mean(models, axis=0), atol=1e-12)
            x = np.mean(models, axis=0) + drift.mean(0)
        np.testing.assert_allclose(found["state_i"][t], state, atol=1e-11)
        np.testing.assert_allclose(found["h_i"][t], drift, atol=1e-11)
        np.testing.assert_allclose(found["x"][t], x, atol=1e-11)


def test_feddc_without_penalty_is_scaffold_but_for_the_mean_drift_in_the_broadcast() -> None:
    problem = Quadratics(noise=0.5)
    ours = feddc_run(problem, alpha=0.0, dropped=())
    theirs = scaffold.run(problem.x0, problem.gradients(), SOME, learning_rate=0.05, steps=STEPS, n_clients=N)
    for name, control in (("state", "c"), ("state_i", "c_i"), ("mean", "x")):
        np.testing.assert_allclose(ours[name][0], theirs[control][0], atol=1e-12)
    np.testing.assert_allclose(ours["x"][0], theirs["x"][0] + ours["h_i"][0].mean(0), atol=1e-12)
    assert np.abs(ours["x"][0] - theirs["x"][0]).max() > 1e-3


def test_feddc_one_number_of_steps_for_all_scales_the_state_only() -> None:
    own, shared = feddc_run(Quadratics(), 0.3), feddc_run(Quadratics(), 0.3, n_minibatch=4)
    np.testing.assert_array_equal(own["h_i"][0], shared["h_i"][0])
    for i in SOME[0]:  # the first state is (x - w_i) / (K eta)
        np.testing.assert_allclose(shared["state_i"][0, i] * 4, own["state_i"][0, i] * STEPS[i], atol=1e-12)


def constant(*vectors: Sequence[float]) -> list[Gradient]:
    def gradient(vector: Sequence[float]) -> Gradient:
        return lambda x, k: np.array(vector, dtype=np.float64)

    return [gradient(vector) for vector in vectors]


def always(*values: float) -> list[Loss]:
    def loss(value: float) -> Loss:
        return lambda x: value

    return [loss(value) for value in values]


def fedfv_steps(
    gradients: list[Gradient],
    participants: Rounds,
    losses: Sequence[float] | None = None,
    *,
    alpha: float = 0.0,
    tau: int = 0,
    reading: str = "paper",
    dropped: Rounds = (),
) -> dict[str, Vector]:
    """One local step of size one from the origin, so that a client's gradient is its pseudo-gradient."""
    n = len(gradients)
    size = len(gradients[0](np.zeros(0), 0))
    run: Callable[..., dict[str, Vector]] = fedfv.run
    return run(
        np.zeros(size),
        gradients,
        participants,
        learning_rate=1.0,
        steps=[1] * n,
        n_clients=n,
        losses=always(*(losses or range(n))),
        alpha=alpha,
        tau=tau,
        reading=reading,
        dropped=dropped,
    )


def scaled(direction: Sequence[float], norm: float) -> Vector:
    return np.array(direction) / np.linalg.norm(direction) * norm


def test_fedfv_two_conflicting_gradients_by_hand() -> None:
    # g_0 = (1, 0) off g_1 = (-1, 1): (1/2, 1/2). g_1 off g_0: (0, 1). Their mean is (1/4, 3/4); that of the originals
    # is (0, 1/2), of norm 1/2.
    found = fedfv_steps(constant([1, 0], [-1, 1]), [[0, 1]])
    np.testing.assert_allclose(found["g"][0], scaled([0.25, 0.75], 0.5), rtol=1e-12)
    np.testing.assert_allclose(found["x"][0], -found["g"][0], rtol=1e-12)


def test_fedfv_alpha_keeps_the_original_of_the_largest_loss() -> None:
    # Kept (-1, 1): mean of (1/2, 1/2) and (-1, 1). Kept (1, 0) when the losses are swapped: mean of it and (0, 1).
    for losses, expected in (([1, 2], [-0.25, 0.75]), ([2, 1], [0.5, 0.5])):
        found = fedfv_steps(constant([1, 0], [-1, 1]), [[0, 1]], losses, alpha=0.5)
        np.testing.assert_allclose(found["g"][0], scaled(expected, 0.5), rtol=1e-12)
    found = fedfv_steps(constant([1, 0], [-1, 1]), [[0, 1]], alpha=1.0)
    np.testing.assert_allclose(found["g"][0], [0, 0.5], rtol=1e-12)  # all kept: the plain mean


@pytest.mark.parametrize(
    ("m", "alpha", "kept"),
    [(10, 0.1, 1), (10, 0.2, 2), (10, 0.0, 0), (10, 1e-9, 1), (10, 1.0, 10), (11, 0.1, 2), (2, 0.5, 1), (1, 0.5, 1)],
)
def test_fedfv_number_of_originals_kept(m: int, alpha: float, kept: int) -> None:
    # Pairwise conflicting, so a gradient that is not kept changes. Losses fall with the index.
    g = [np.eye(m)[i] - 0.9 * np.ones(m) / m for i in range(m)]
    projected = fedfv.internal(g, [float(-i) for i in range(m)], alpha)
    same = [np.array_equal(p, original) for p, original in zip(projected, g, strict=True)]
    assert same == [True] * kept + [False] * (m - kept) if m > 1 else same == [True]


def test_fedfv_visits_the_others_in_the_order_of_rising_loss() -> None:
    # a = (1, 0, 0) conflicts with b = (-1, 1, 0) and c = (-1, 0, 1); b becomes (0, 1, 0) and c (0, 0, 1).
    # b then c: a -> (1/2, 1/2, 0) -> (1/4, 1/2, 1/4). c then b: (1/4, 1/4, 1/2). Mean of originals: norm 1/sqrt(3).
    gradients = constant([1, 0, 0], [-1, 1, 0], [-1, 0, 1])
    for losses, expected in (([5, 1, 2], [0.25, 1.5, 1.25]), ([5, 2, 1], [0.25, 1.25, 1.5])):
        found = fedfv_steps(gradients, [[0, 1, 2]], losses)
        np.testing.assert_allclose(found["g"][0], scaled(expected, 3**-0.5), rtol=1e-12)


def test_fedfv_restores_the_norm_of_the_mean_of_the_originals_and_nothing_else_without_conflict() -> None:
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(6, 4))
    for reading in ("paper", "code"):
        found = fedfv_steps(constant(*vectors), [[0, 1, 2], [3, 4, 5], [1, 3]], alpha=0.3, tau=2, reading=reading)
        for step, asked in zip(found["g"], ([0, 1, 2], [3, 4, 5], [1, 3]), strict=True):
            assert np.linalg.norm(step) == pytest.approx(np.linalg.norm(vectors[asked].mean(0)), rel=1e-12)
        agreeing = np.abs(vectors)
        found = fedfv_steps(constant(*agreeing), [[0, 1, 2], [3, 4]], alpha=0.3, tau=1, reading=reading)
        np.testing.assert_allclose(found["g"], [agreeing[:3].mean(0), agreeing[3:5].mean(0)], rtol=1e-12)


def test_fedfv_tau_of_one_looks_back_one_round_in_the_paper_and_none_in_the_code() -> None:
    # (-1, 1) off (1, 0) of the round before: (0, 1), scaled back to sqrt(2).
    gradients = constant([1, 0], [-1, 1])
    np.testing.assert_allclose(fedfv_steps(gradients, [[0], [1]], tau=0)["g"][1], [-1, 1], rtol=1e-12)
    np.testing.assert_allclose(fedfv_steps(gradients, [[0], [1]], tau=1)["g"][1], [0, 2**0.5], atol=1e-12)
    np.testing.assert_allclose(fedfv_steps(gradients, [[0], [1]], tau=1, reading="code")["g"][1], [-1, 1], rtol=1e-12)
    np.testing.assert_allclose(
        fedfv_steps(gradients, [[0], [1]], tau=2, reading="code")["g"][1], [0, 2**0.5], atol=1e-12
    )
    # The client that is asked again has no past gradient any more.
    np.testing.assert_allclose(fedfv_steps(gradients, [[0], [0, 1]], tau=1)["last"][1], [1, 1])


def test_fedfv_code_with_tau_of_one_projects_off_this_rounds_own_originals() -> None:
    # The mean (-1/4, 3/4) of the test of alpha conflicts with the original (1, 0): (0, 3/4), scaled to 1/2.
    gradients = constant([1, 0], [-1, 1])
    code = fedfv_steps(gradients, [[0, 1]], alpha=0.5, tau=1, reading="code")
    np.testing.assert_allclose(code["g"][0], [0, 0.5], atol=1e-12)
    for tau, reading in ((0, "code"), (1, "paper")):
        found = fedfv_steps(gradients, [[0, 1]], alpha=0.5, tau=tau, reading=reading)
        np.testing.assert_allclose(found["g"][0], scaled([-0.25, 0.75], 0.5), rtol=1e-12)


def test_fedfv_starts_its_external_step_only_when_tau_rounds_are_there() -> None:
    # At the second round a conflicting gradient is there, but "t >= tau" (from 0) and "t >= tau" (from 1) do not hold.
    gradients = constant([1, 0], [-1, 1])
    np.testing.assert_allclose(fedfv_steps(gradients, [[0], [1]], tau=2)["g"][1], [-1, 1], rtol=1e-12)
    np.testing.assert_allclose(fedfv_steps(gradients, [[0], [1]], tau=3, reading="code")["g"][1], [-1, 1], rtol=1e-12)


@pytest.mark.parametrize(("tau", "reading"), [(2, "paper"), (3, "code")])
def test_fedfv_visits_past_rounds_from_oldest_to_newest(tau: int, reading: str) -> None:
    # (-1, -1) off (1, 0) of the first round: (0, -1); then off (-1, 1) of the second: (-1/2, -1/2). The other way
    # round, (-1, 1) would not conflict and (0, -1) remain.
    found = fedfv_steps(constant([1, 0], [-1, 1], [-1, -1]), [[0], [1], [2]], tau=tau, reading=reading)
    np.testing.assert_allclose(found["g"][2], [-1, -1], rtol=1e-12)


def test_fedfv_adds_up_the_conflicting_gradients_of_one_past_round() -> None:
    # g_con = (1, 0, 0) + (1, 1, 0), without (0, 0, 1), which does not conflict: (-1, -1, 1) + 3/5 (2, 1, 0).
    gradients = constant([1, 0, 0], [1, 1, 0], [0, 0, 1], [-1, -1, 1])
    found = fedfv_steps(gradients, [[0, 1, 2], [3]], tau=1)
    np.testing.assert_allclose(found["g"][1], scaled([0.2, -0.4, 1.0], 3**0.5), rtol=1e-12)


def test_fedfv_keeps_only_the_last_gradient_of_an_absent_client_and_none_that_was_lost() -> None:
    # Client 0 answers with (1, 0), then with (0, 1). Only the first would conflict with (-1, 0).
    def changing() -> Gradient:
        answers = iter([[1.0, 0.0], [0.0, 1.0]])
        return lambda x, k: np.array(next(answers)) if x.size else np.zeros(2)

    found = fedfv_steps([changing(), *constant([-1, 0])], [[0], [0], [1]], tau=2)
    np.testing.assert_allclose(found["gh"][2], [[0, 1], [-1, 0]])
    np.testing.assert_allclose(found["g"][2], [-1, 0], atol=1e-12)
    found = fedfv_steps([changing(), *constant([-1, 0])], [[0], [0], [1]], tau=2, dropped=[[], [0]])
    np.testing.assert_allclose(found["last"][2], [0, 2])
    np.testing.assert_allclose(found["g"][1:], [[0, 0], [0, 0]], atol=1e-12)  # (-1, 0) off (1, 0) leaves nothing


def test_a_lost_reply_is_an_absent_client() -> None:
    """In every method: the same as not having been asked."""
    problem = Quadratics(noise=0.5)
    common = {"learning_rate": 0.05, "steps": STEPS}
    losses = always(3, 1, 4, 2, 5)
    methods: dict[str, tuple[Callable[..., dict[str, Vector]], dict[str, object]]] = {
        "fedprox": (fedprox.run, {"sizes": [5, 20, 10, 35, 15], "mu": 0.1}),
        "scaffold": (scaffold.run, {"n_clients": N}),
        "feddyn": (feddyn.run, {"n_clients": N, "alpha": 0.5}),
        "feddc": (feddc.run, {"n_clients": N, "alpha": 0.1}),
        "fedfv": (fedfv.run, {"n_clients": N, "losses": losses, "alpha": 0.3, "tau": 1, "reading": "paper"}),
    }
    arrived = [[i for i in asked if i not in lost] for asked, lost in zip(SOME, LOST, strict=False)]
    for run, options in methods.values():
        lost = run(problem.x0, problem.gradients(), SOME[: len(LOST)], **common, **options, dropped=LOST)
        absent = run(problem.x0, problem.gradients(), arrived, **common, **options)
        for name, value in lost.items():
            np.testing.assert_array_equal(value, absent[name])
        assert np.array_equal(lost["x"][4], lost["x"][3])  # every reply of the fifth round was lost
