"""The mathematics of FedCOME, on NumPy and SciPy only: it knows neither Flower nor PyTorch."""

from .arrays import Arrays, ParameterRule, is_parameter
from .dual_cone import ConsensusSolution, solve_consensus
from .methods import Method, equal_step_control, fedavg, fedcome
from .round_report import RoundReport
from .rounds import RoundOutcome, aggregate_round
from .selection import ConsensusSelection, Selection, Selector, UniformSelection
from .similarity import SimilarityTable
from .state import ServerState
from .updates import ClientUpdate
from .weighting import Cohort, Combination, Consensus, EqualStep, Mean, UniformMean, Weighting

__all__ = [
    "Arrays",
    "ClientUpdate",
    "Cohort",
    "Combination",
    "Consensus",
    "ConsensusSelection",
    "ConsensusSolution",
    "EqualStep",
    "Mean",
    "Method",
    "ParameterRule",
    "RoundOutcome",
    "RoundReport",
    "Selection",
    "Selector",
    "ServerState",
    "SimilarityTable",
    "UniformMean",
    "UniformSelection",
    "Weighting",
    "aggregate_round",
    "equal_step_control",
    "fedavg",
    "fedcome",
    "is_parameter",
    "solve_consensus",
]
