"""The methods by name: each a weighting and what the server does with the direction."""

from dataclasses import dataclass
from typing import Literal, get_args

from .checks import check_choice, check_positive_or_none
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
    client_weights
        A client's importance: its share of the round's training examples (``"examples"``) or one over the number
        of clients (``"uniform"``). Buffers are always averaged by examples.
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
    """

    name: str
    weighting: Weighting
    client_weights: ClientWeights = "examples"
    server_step: ServerStep = 1.0
    max_client_norm: float | None = None
    max_update_norm: float | None = None
    loss_key: str = "train-loss"

    def __post_init__(self) -> None:
        check_choice("client_weights", self.client_weights, get_args(ClientWeights))
        if isinstance(self.server_step, str):
            check_choice("server_step", self.server_step, ("adaptive", "a positive number"))
        else:
            check_positive_or_none("server_step", self.server_step)
        check_positive_or_none("max_client_norm", self.max_client_norm)
        check_positive_or_none("max_update_norm", self.max_update_norm)


def fedavg(client_weights: ClientWeights = "examples") -> Method:
    """FedAvg: the mean of the clients' models (McMahan et al. 2017, "Communication-efficient learning …")."""
    return Method("fedavg", Mean(), client_weights=client_weights)


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
