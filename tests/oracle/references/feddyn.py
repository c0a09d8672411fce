"""FedDyn: Acar et al. 2021, Federated Learning Based on Dynamic Regularization, Algorithm 1.

The authors' code (alpemreacar/FedDyn, utils_methods.py: train_FedDyn) is the same in other variables: it keeps
``local_param_list[k] = -grad_k / alpha``, adds ``theta_k - theta`` to it after each round, and broadcasts the mean of
the participants plus the mean of all ``local_param_list``, which is -h/alpha. It deviates from the paper in one thing
that is not repeated here: it divides alpha by the client's relative size
(``alpha_coef_adpt = alpha_coef / weight_list[clnt]``). It also clips the norm of each step's gradient at 10, and adds
weight decay; neither is part of the method.
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
    dropped: Rounds = (),
) -> dict[str, Vector]:
    """``x``; ``h``, the server's state; ``grad_i``, the clients' stored gradients. Both start at zero."""
    m = n_clients  # the paper's m is the number of all devices
    theta = np.array(x0, dtype=np.float64)
    h = np.zeros_like(theta)
    grad = [np.zeros_like(theta) for _ in range(m)]
    history: dict[str, list[Vector]] = {"x": [], "h": [], "grad_i": []}
    for t in range(len(participants)):
        P_t = replied(participants, dropped, t)

        theta_k = {}
        for k in P_t:
            # argmin of R_k(theta) = L_k(theta) - <grad_k, theta> + alpha/2 ||theta - theta^{t-1}||^2, by SGD from
            # theta^{t-1} (the authors' code warm-starts there, too).
            w = theta.copy()
            for step in range(steps[k]):
                w = w - learning_rate * (gradients[k](w, step) - grad[k] + alpha * (w - theta))
            theta_k[k] = w
        for k in P_t:
            grad[k] = grad[k] - alpha * (theta_k[k] - theta)  # the others keep theirs

        if P_t:
            drift = np.zeros_like(theta)
            mean = np.zeros_like(theta)
            for k in P_t:
                drift = drift + (theta_k[k] - theta)
                mean = mean + theta_k[k] / len(P_t)
            h = h - alpha * drift / m  # over all devices, not over |P_t|
            theta = mean - h / alpha

        history["x"].append(theta.copy())
        history["h"].append(h.copy())
        history["grad_i"].append(np.array(grad))
    return {name: np.array(values) for name, values in history.items()}
