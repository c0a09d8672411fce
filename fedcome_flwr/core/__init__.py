"""The mathematics of FedCOME, on NumPy and SciPy only: it knows neither Flower nor PyTorch."""

from .arrays import Arrays, ParameterRule, is_parameter
from .dual_cone import ConsensusSolution, solve_consensus
from .fair_projection import FairProjection
from .local_rule import ClientMemory, Correction, LocalRule
from .methods import Method, equal_step_control, fedavg, fedcome, feddc, feddyn, fedfv, fedprox, scaffold
from .round_report import RoundReport
from .rounds import RoundOutcome, aggregate_round
from .selection import ConsensusSelection, Selection, Selector, UniformSelection
from .similarity import SimilarityTable
from .state import ServerState
from .updates import ClientUpdate
from .weighting import Cohort, Combination, Consensus, EqualStep, Mean, Weighting

__all__ = [
    "Arrays",
    "ClientMemory",
    "ClientUpdate",
    "Cohort",
    "Combination",
    "Consensus",
    "ConsensusSelection",
    "ConsensusSolution",
    "Correction",
    "EqualStep",
    "FairProjection",
    "LocalRule",
    "Mean",
    "Method",
    "ParameterRule",
    "RoundOutcome",
    "RoundReport",
    "Selection",
    "Selector",
    "ServerState",
    "SimilarityTable",
    "UniformSelection",
    "Weighting",
    "aggregate_round",
    "equal_step_control",
    "fedavg",
    "fedcome",
    "feddc",
    "feddyn",
    "fedfv",
    "fedprox",
    "is_parameter",
    "scaffold",
    "solve_consensus",
]
