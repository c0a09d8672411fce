"""Five published federated methods in plain NumPy, written from the papers and the authors' code.

They are oracles: each is one short function that a reader of the paper can check line by line, with the paper's own
variables, explicit loops and float64. They import nothing from the package that they are compared with.

======== ===================================================================================== =============
method   paper                                                                                 file
======== ===================================================================================== =============
FedProx  Li et al. 2020, Federated Optimization in Heterogeneous Networks (Algorithm 2)        fedprox.py
SCAFFOLD Karimireddy et al. 2020, Stochastic Controlled Averaging for FL (Algorithm 1)         scaffold.py
FedDyn   Acar et al. 2021, Federated Learning Based on Dynamic Regularization (Algorithm 1)    feddyn.py
FedDC    Gao et al. 2022, FL with Non-IID Data via Local Drift Decoupling and Correction       feddc.py
FedFV    Wang et al. 2021, Federated Learning with Fair Averaging (Algorithms 1 to 3)          fedfv.py
======== ===================================================================================== =============

Every module has one function ``run(x0, gradients, participants, *, learning_rate, steps, ..., dropped=())``:

``x0``
    The first broadcast model, a flat float64 vector of length d.
``gradients[i](x, k)``
    Gradient at ``x`` of the loss of client i's mini-batch in its local step k = 0, 1, ..., ``steps[i] - 1``.
    k starts again at 0 in every round.
``participants[t]``
    The clients that are asked in round t = 0, 1, ..., as integers below ``n_clients``.
``dropped[t]``
    Those of them whose reply was lost: they keep their old variables and the server takes them as absent. May be
    shorter than ``participants``. A round in which every reply is lost leaves all variables as they are.
``learning_rate``, ``steps[i]``
    Step size of the local SGD steps and the number of local steps of client i.

It returns a dictionary of float64 arrays whose first axis is the round, each as it is *after* that round:
``x`` of shape [T, d] is the next broadcast model. Server variables have shape [T, d], variables of the clients
[T, n_clients, d]; their names stand in the docstring of each ``run``.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Gradient = Callable[[Vector, int], Vector]
Loss = Callable[[Vector], float]
Rounds = Sequence[Sequence[int]]


def replied(participants: Rounds, dropped: Rounds, t: int) -> list[int]:
    """The clients of round ``t`` whose reply arrived, in the order in which they were asked."""
    lost = dropped[t] if t < len(dropped) else ()
    return [i for i in participants[t] if i not in lost]
