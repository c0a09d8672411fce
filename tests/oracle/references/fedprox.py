"""FedProx: Li et al. 2020, Federated Optimization in Heterogeneous Networks, Algorithm 2."""

from collections.abc import Sequence

import numpy as np

from tests.oracle.references import Gradient, Rounds, Vector, replied


def run(
    x0: Vector,
    gradients: Sequence[Gradient],
    participants: Rounds,
    *,
    learning_rate: float,
    steps: Sequence[int],
    sizes: Sequence[float],
    mu: float,
    dropped: Rounds = (),
) -> dict[str, Vector]:
    """``x``; ``sizes[i]`` is client i's number of examples, ``mu`` the weight of the proximal term (0: FedAvg)."""
    w_t = np.array(x0, dtype=np.float64)
    history = []
    for t in range(len(participants)):
        S_t = replied(participants, dropped, t)

        # Client k: an inexact minimiser of h_k(w; w^t) = F_k(w) + mu/2 ||w - w^t||^2, here by SGD from w^t with the
        # step of the authors' optimiser: w -= eta (grad + mu (w - w^t)) (litian96/FedProx, flearn/optimizer/pgd.py).
        w_next = {}
        for k in S_t:
            w = w_t.copy()
            for step in range(steps[k]):
                w = w - learning_rate * (gradients[k](w, step) + mu * (w - w_t))
            w_next[k] = w

        # Server. Algorithm 2 draws client k with probability p_k = n_k/n and takes the plain mean. The authors' code
        # draws uniformly and weights by n_k instead (flearn/trainers/fedbase.py: select_clients, aggregate); so here.
        if S_t:
            total = 0.0
            w_sum = np.zeros_like(w_t)
            for k in S_t:
                total = total + sizes[k]
                w_sum = w_sum + sizes[k] * w_next[k]
            w_t = w_sum / total

        history.append(w_t.copy())
    return {"x": np.array(history)}
