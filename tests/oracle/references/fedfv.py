"""FedFV: Wang et al. 2021, Federated Learning with Fair Averaging (IJCAI), Algorithms 1 to 3.

The authors' code is WwZzz/easyFL. Line numbers are those of flgo/algorithm/fedfv.py as of 2023-08 (f0721ad). Its
internal step and scaling are those of branch easyFL_v1.0 (May 2021, method/fedfv.py), but its external step is not:

reading="paper"
    Algorithm 3 and easyFL_v1.0: from round t = tau on (counted from 0), the past rounds t - tau, ..., t - 1, oldest
    first. No client of this round is among them, as its last gradient is this round's.
reading="code"
    Since 2021-08-25 (ddf7d4d): from round tau on (counted from 1), the rounds t - tau + 1, ..., t, oldest first
    (57-58). The last of them is *this* round: the mean is also projected off the sum of those originals of this
    round's own clients that it conflicts with. So tau = 1 sees no absent client, yet is not an empty step; tau = 0 is.

In both, a round stands for those clients whose *last* reply came in that round; those of their gradients that conflict
with the mean are added up, and the mean is projected off their sum, once for each round.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from tests.oracle.references import Gradient, Loss, Rounds, Vector, replied


def internal(g: Sequence[Vector], losses: Sequence[float], alpha: float) -> list[Vector]:
    """Algorithm 2: each gradient projected off the others' originals, in the order of rising loss."""
    m = len(g)
    PO = sorted(range(m), key=lambda k: losses[k])  # ties keep the order in which the clients were asked (33-35)
    # 38-40. The top alpha*m in the paper. The code keeps m - ceil((m - 1)(1 - alpha)), at least one where alpha > 0.
    kept = PO[math.ceil((m - 1) * (1 - alpha)) :] if alpha > 0 else []
    g_pc = [g_k.copy() for g_k in g]
    for k in range(m):
        if k in kept:
            continue
        for j in PO:  # 45: the kept ones are projected off, too
            dot = g[j] @ g_pc[k]
            if j != k and dot < 0:
                g_pc[k] = g_pc[k] - dot / (g[j] @ g[j]) * g[j]
    return g_pc


def external(g_t: Vector, gh: Sequence[Vector], last: Sequence[int], rounds: Sequence[int]) -> Vector:
    """Algorithm 3 for the given rounds; client k's last gradient ``gh[k]`` is of round ``last[k]``."""
    for past in rounds:
        g_con = np.zeros_like(g_t)
        for k in range(len(gh)):
            if last[k] == past and g_t @ gh[k] < 0:
                g_con = g_con + gh[k]
        dot = g_t @ g_con
        if dot < 0:
            g_t = g_t - dot / (g_con @ g_con) * g_con
    return g_t


def run(
    x0: Vector,
    gradients: Sequence[Gradient],
    participants: Rounds,
    *,
    learning_rate: float,
    steps: Sequence[int],
    n_clients: int,
    losses: Sequence[Loss],
    alpha: float,
    tau: int,
    reading: Literal["paper", "code"],
    dropped: Rounds = (),
) -> dict[str, Vector]:
    """``x``; the step ``g`` = x before - x after; the history ``gh`` and the rounds ``last`` it is of (-1: never).

    ``losses[i](x)`` is client i's training loss at the broadcast model. ``last`` has shape [T, n_clients].
    """
    theta = np.array(x0, dtype=np.float64)
    gh = [np.zeros_like(theta) for _ in range(n_clients)]
    last = [-1] * n_clients
    history: dict[str, list[Vector]] = {"x": [], "g": [], "gh": [], "last": []}
    for t in range(len(participants)):
        S_t = replied(participants, dropped, t)
        m = len(S_t)
        g_k = []
        l_k = []
        for k in S_t:
            l_k.append(losses[k](theta.copy()))  # before training (Client.reply)
            w = theta.copy()
            for step in range(steps[k]):
                w = w - learning_rate * gradients[k](w, step)
            g_k.append(theta - w)
            gh[k] = theta - w
            last[k] = t

        g_t = np.zeros_like(theta)
        if S_t:
            mean = np.zeros_like(theta)  # equal weights 1/m (55, 68): the code has no weights by examples
            for g_original, g_pc in zip(g_k, internal(g_k, l_k, alpha), strict=True):
                mean = mean + g_original / m
                g_t = g_t + g_pc / m
            if reading == "paper" and t >= tau:
                g_t = external(g_t, gh, last, range(t - tau, t))
            if reading == "code" and t + 1 >= tau:
                g_t = external(g_t, gh, last, range(t - tau + 1, t + 1))
            norm = math.sqrt(g_t @ g_t)
            if norm > 0:  # the code divides by zero here
                g_t = g_t / norm * math.sqrt(mean @ mean)  # 68-69
            theta = theta - g_t

        history["x"].append(theta.copy())
        history["g"].append(g_t.copy())
        history["gh"].append(np.array(gh))
        history["last"].append(np.array(last, dtype=np.float64))
    return {name: np.array(values) for name, values in history.items()}
