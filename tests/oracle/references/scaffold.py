"""SCAFFOLD: Karimireddy et al. 2020, Stochastic Controlled Averaging for Federated Learning, Algorithm 1, option II."""

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
    n_clients: int,
    dropped: Rounds = (),
) -> dict[str, Vector]:
    """``x``; ``c``, the server's control variate; ``c_i``, those of the clients. All controls start at zero."""
    N = n_clients
    eta_g = 1.0  # the paper's experiments use a global step size of 1
    eta_l = learning_rate
    x = np.array(x0, dtype=np.float64)  # line 1
    c = np.zeros_like(x)
    c_i = [np.zeros_like(x) for _ in range(N)]  # line 2
    history: dict[str, list[Vector]] = {"x": [], "c": [], "c_i": []}
    for t in range(len(participants)):
        S = replied(participants, dropped, t)  # line 4

        delta_y = {}
        delta_c = {}
        for i in S:  # lines 5 and 6
            y_i = x.copy()  # line 7
            K_eta = 0.0  # the paper has one K for all; clients of other sizes take other numbers of steps
            for k in range(steps[i]):  # line 8
                g_i = gradients[i](y_i, k)  # line 9
                y_i = y_i - eta_l * (g_i - c_i[i] + c)  # line 10
                K_eta = K_eta + eta_l
            c_i_plus = c_i[i] - c + (x - y_i) / K_eta  # line 12, option (ii)
            delta_y[i] = y_i - x  # line 13
            delta_c[i] = c_i_plus - c_i[i]
        for i in S:
            c_i[i] = c_i[i] + delta_c[i]  # line 14; a client whose reply was lost is not in S and keeps its c_i

        if S:
            mean_delta_y = np.zeros_like(x)  # line 16, plain means
            mean_delta_c = np.zeros_like(x)
            for i in S:
                mean_delta_y = mean_delta_y + delta_y[i] / len(S)
                mean_delta_c = mean_delta_c + delta_c[i] / len(S)
            x = x + eta_g * mean_delta_y  # line 17
            c = c + len(S) / N * mean_delta_c

        history["x"].append(x.copy())
        history["c"].append(c.copy())
        history["c_i"].append(np.array(c_i))
    return {name: np.array(values) for name, values in history.items()}
