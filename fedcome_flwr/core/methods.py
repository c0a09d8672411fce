"""The methods by name: each a local rule, a weighting, and what the server does with the direction."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from .checks import check_at_least, check_choice, check_positive_or_none
from .fair_projection import FairProjection, TauReading
from .local_rule import LocalRule
from .weighting import Consensus, EqualStep, Mean, Weighting

ClientWeights = Literal["examples", "uniform"]
ServerStep = float | Literal["adaptive"]


@dataclass(frozen=True)
class Method:
    """Everything that tells one federated method from another, as a value.

    Attributes
    ----------
    name
        How reports call it.
    weighting
        From Gram matrix to coefficients.
    rule
        What clients add to their gradients. With a drift, its mean over all clients is added to the new model.
    client_weights
        A client's importance: its share of the round's training examples (``"examples"``) or one over the number
        of clients (``"uniform"``). Buffers are averaged by the same weights.
    server_step
        Factor on the direction before it is subtracted from the model; ``"adaptive"`` see
        :func:`~fedcome_flwr.core.step.next_step`.
    max_client_norm
        Clients' pseudo-gradients are scaled down to at most this many times the cohort's median norm before they
        are weighed. ``None``: no bound.
    max_update_norm
        The step that is subtracted is scaled down to at most this norm. ``None``: no bound.
    loss_key
        Name under which clients report the loss of the model they received, before training.
    needs_losses
        Whether the weighting cannot do without these losses: clients are asked for them, and a reply without is
        left out.
    remember_rounds
        For how many rounds the server keeps each client's last pseudo-gradient, for weightings that look at absent
        clients too.
    """

    name: str
    weighting: Weighting
    rule: LocalRule = field(default_factory=LocalRule)
    client_weights: ClientWeights = "examples"
    server_step: ServerStep = 1.0
    max_client_norm: float | None = None
    max_update_norm: float | None = None
    loss_key: str = "train-loss"
    needs_losses: bool = False
    remember_rounds: int = 0

    def __post_init__(self) -> None:
        check_choice("client_weights", self.client_weights, get_args(ClientWeights))
        if isinstance(self.server_step, str):
            check_choice("server_step", self.server_step, ("adaptive", "a positive number"))
        else:
            check_positive_or_none("server_step", self.server_step)
        check_positive_or_none("max_client_norm", self.max_client_norm)
        check_positive_or_none("max_update_norm", self.max_update_norm)
        check_at_least("remember_rounds", self.remember_rounds, 0)


def fedavg(client_weights: ClientWeights = "examples") -> Method:
    """FedAvg: the mean of the clients' models (McMahan et al. 2017, "Communication-efficient learning …")."""
    return Method("fedavg", Mean(), client_weights=client_weights)


def fedprox(mu: float = 0.01, client_weights: ClientWeights = "examples") -> Method:
    r"""FedProx: clients are pulled back to the broadcast model (Li et al. 2020, algorithm 2).

    Each client adds the gradient of :math:`\tfrac{\mu}{2} \lVert w - w_0 \rVert^2`. As in the authors' code the
    server takes the mean weighted by examples.

    Parameters
    ----------
    mu
        0 or more; 0 is FedAvg. The authors search 0.001, 0.01, 0.1 and 1.
    client_weights
        See :class:`Method`.
    """
    return Method("fedprox", Mean(), LocalRule(pull=mu), client_weights=client_weights)


def scaffold() -> Method:
    r"""SCAFFOLD: control variates against client drift (Karimireddy et al. 2020, algorithm 1, option II).

    Clients add :math:`C - c_i`. The server takes the plain mean of the replies (global step size 1) and keeps
    :math:`\sum_i c_i` over all N clients, those that never took part included with 0, so that
    :math:`C = \tfrac1N \sum_i c_i` always is the mean of the clients' own. Controls start at 0, travel only from
    server to client, and are not scaled by client size.
    """
    return Method("scaffold", Mean(), LocalRule(control=True), client_weights="uniform")


def feddyn(alpha: float = 0.01) -> Method:
    r"""FedDyn: dynamic regularisation (Acar et al. 2021, algorithm 1).

    Clients add :math:`\alpha (w - w_0 + h_i)`; their dual variable is :math:`-\alpha h_i`. The new model is the plain
    mean of the replies plus :math:`\tfrac1N \sum_i h_i` over all N clients. Unlike in the authors' code
    :math:`\alpha` is not scaled by client size, and gradients are not clipped unless clients say so.

    Parameters
    ----------
    alpha
        Positive. The authors search 0.1, 0.01 and 0.001, and use 0.01 on CIFAR.
    """
    _check_positive("alpha", alpha)
    return Method("feddyn", Mean(), LocalRule(pull=alpha, drift=True), client_weights="uniform")


def feddc(alpha: float = 0.1) -> Method:
    r"""FedDC: drift decoupling and correction (Gao et al. 2022), as its published code computes it.

    Clients add :math:`\alpha (w - w_0 + h_i) + C - c_i`, and the new model is the plain mean of the replies plus
    :math:`\tfrac1N \sum_i h_i` over all N clients. As in the authors' code, and other than the paper's text, the
    control variates are SCAFFOLD's, from each client's own last participation, with the pull counted in. Neither
    :math:`\alpha` nor :math:`C` is scaled by client size.

    Parameters
    ----------
    alpha
        Positive. The authors use 0.1 on MNIST and 0.01 on CIFAR.
    """
    _check_positive("alpha", alpha)
    return Method("feddc", Mean(), LocalRule(pull=alpha, drift=True, control=True), client_weights="uniform")


def fedfv(
    alpha: float = 0.1,
    tau: int = 1,
    *,
    reading: TauReading = "paper",
    client_weights: ClientWeights = "uniform",
    loss_key: str = "train-loss",
) -> Method:
    """FedFV: projections in the order of the losses (Wang et al. 2021, algorithms 1 to 3).

    Clients have to report their loss before training. The server keeps clients' last pseudo-gradients for as many
    rounds as the external step looks back.

    Parameters
    ----------
    alpha, tau, reading
        See :class:`~fedcome_flwr.core.FairProjection`.
    client_weights, loss_key
        See :class:`Method`.
    """
    weighting = FairProjection(alpha, tau, reading)
    return Method(
        "fedfv",
        weighting,
        client_weights=client_weights,
        loss_key=loss_key,
        needs_losses=True,
        remember_rounds=weighting.remember_rounds,
    )


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}: expected a positive number, found {value!r}")


def fedcome(
    client_weights: ClientWeights = "examples",
    *,
    solver: str = "newton",
    influence_limit: float | None = None,
    max_client_norm: float | None = None,
    max_update_norm: float | None = None,
    server_step: ServerStep = "adaptive",
    loss_key: str = "train-loss",
) -> Method:
    """FedCOME: the mean of the clients' dual-cone projections (equations 3 to 6 of the paper).

    The paper's own settings are ``client_weights="uniform", server_step=1.0``.

    Parameters
    ----------
    solver, influence_limit
        See :class:`~fedcome_flwr.core.weighting.Consensus`.
    client_weights, max_client_norm, max_update_norm, server_step, loss_key
        See :class:`Method`.
    """
    return Method(
        "fedcome",
        Consensus(solver, influence_limit),
        client_weights=client_weights,
        server_step=server_step,
        max_client_norm=max_client_norm,
        max_update_norm=max_update_norm,
        loss_key=loss_key,
    )


_CONTROLS: dict[str, Weighting] = {
    "consensus-at-mean-norm": EqualStep(Consensus(), Mean()),
    "mean-at-consensus-norm": EqualStep(Mean(), Consensus()),
}


def equal_step_control(name: str, client_weights: ClientWeights = "examples") -> Method:
    """The two controls that say how much of FedCOME's lead is direction and how much is step length.

    Parameters
    ----------
    name
        ``"consensus-at-mean-norm"``: FedCOME's direction, FedAvg's step length; ``"mean-at-consensus-norm"``: the
        other way round.
    """
    check_choice("equal-step control", name, tuple(_CONTROLS))
    return Method(name, _CONTROLS[name], client_weights=client_weights)
