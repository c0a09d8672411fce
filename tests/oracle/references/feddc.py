"""FedDC: Gao et al. 2022, as the authors' code computes it (gaoliang13/FedDC at a constant learning rate).

Line numbers are those of utils_methods_FedDC.py (server) and utils_general.py (client, ``train_model_FedDC``).

The state is SCAFFOLD's with other names: ``local_update_last`` = ``state_gadient_diffs[i]`` is c_i,
``state_gadient_diffs[-1]`` is c, ``state_g`` is c_i+ = c_i - c + (x - w_i) / (K eta), and ``delta_g_cur`` is
c_i+ - c_i, so that c stays the mean of all c_i. The local step adds c - c_i. Two things differ. The steps also contain
the gradient of the penalty, hence c_i+ is the mean over the local steps of ``grad L_i(w) + alpha (w - x + h_i)``, where
SCAFFOLD's is that of ``grad L_i(w)``. And the next broadcast is the participants' mean plus the mean of all drifts.

Where the code deviates from the paper's text:

- The paper's correction is <w, D_i - D> / (K eta), D_i the client's update in the last round and D the mean of these.
  The code has -c_i for D_i / (K eta) and -c for D / (K eta): recursive (c_i - c is added each time), from the last
  round *in which the client took part*, and c a running mean over all clients.
- The paper's server takes one mean, of w_i + h_i. The code takes that of w_i over the participants and that of h_i over
  all clients, the absent ones included (189).
- K is the number of local steps in the paper. The code divides by one ``n_minibatch`` for all (175), in the examples
  the epochs times ceil(mean client size / batch size), though the client makes as many steps as its own data give.

Left out: dividing alpha and c by the client's relative size and multiplying c_i+ - c_i by it (164, 165, 178), clipping
of the step's gradient at norm 10, weight decay. With equal sizes the first of these is nothing.
"""

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
    alpha: float,
    n_minibatch: float | None = None,
    dropped: Rounds = (),
) -> dict[str, Vector]:
    """``x``; ``mean`` of the participants' models; ``state`` of the server; ``h_i`` and ``state_i`` of the clients.

    Drifts and states start at zero.
    ``n_minibatch`` is the code's one number of steps for all clients; None takes each client's own, ``steps[i]``.
    """
    x = np.array(x0, dtype=np.float64)  # cld_mdl_param
    mean = x.copy()  # avg_mdl_param_sel: evaluated, but never broadcast
    h_i = [np.zeros_like(x) for _ in range(n_clients)]  # parameter_drifts, 47
    state_i = [np.zeros_like(x) for _ in range(n_clients)]  # state_gadient_diffs, 54
    state = np.zeros_like(x)  # its last row
    history: dict[str, list[Vector]] = {"x": [], "mean": [], "h_i": [], "state": [], "state_i": []}
    for t in range(len(participants)):
        selected = replied(participants, dropped, t)

        w_i = {}
        delta_g_sum = np.zeros_like(x)
        for i in selected:
            # Loss of a step: L_i(w) + alpha/2 ||w - (x - h_i)||^2 + <w, state - state_i>, client code 428 and 467-471.
            w = x.copy()  # starts from the broadcast, not from x - h_i
            for step in range(steps[i]):
                penalty = alpha * (w - (x - h_i[i]))
                w = w - learning_rate * (gradients[i](w, step) + penalty + state - state_i[i])
            w_i[i] = w

            h_i[i] = h_i[i] + (w - x)  # 174
            K = steps[i] if n_minibatch is None else n_minibatch
            state_g = state_i[i] - state - (w - x) / (K * learning_rate)  # 175-177
            delta_g_sum = delta_g_sum + (state_g - state_i[i])  # 178-179
            state_i[i] = state_g  # 180

        if selected:
            mean = np.zeros_like(x)
            for i in selected:
                mean = mean + w_i[i] / len(selected)  # 185
            state = state + delta_g_sum / n_clients  # 186-187
            mean_drift = np.zeros_like(x)
            for i in range(n_clients):
                mean_drift = mean_drift + h_i[i] / n_clients
            x = mean + mean_drift  # 189: the next broadcast

        history["x"].append(x.copy())
        history["mean"].append(mean.copy())
        history["h_i"].append(np.array(h_i))
        history["state"].append(state.copy())
        history["state_i"].append(np.array(state_i))
    return {name: np.array(values) for name, values in history.items()}
