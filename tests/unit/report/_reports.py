"""Made-up rounds, as JsonLines writes them."""

from fedcome_flwr.core import RoundReport

CLIENTS = ("a", "b", "c", "d")


def report(number: int, **values) -> RoundReport:
    """A round of clients a, b and, in odd rounds, c; d tests and never trains."""
    clients = CLIENTS[: 3 if number % 2 else 2]
    losses = {"a": 2.0 / number, "b": 1.0 + 0.1 * number, "c": 3.0 - 0.1 * number}
    found = {
        "clients": clients,
        "client_weights": tuple(1 / len(clients) for _ in clients),
        "train_losses": tuple(losses[key] for key in clients),
        "client_metrics": {key: {"num-examples": 10, "train-loss": losses[key]} for key in clients},
        "conflicting_pairs": 0.5,
        "remaining_conflicts": 0.0,
        "hurt_by_mean": 1,
        "norm_ratio": 2.0,
        "smoothness_limit": 0.1 * number,
        "annealed": clients[:1],
        "times_chosen": {"a": number, "b": number, "c": (number + 1) // 2},
        "evaluations": {
            key: {"num-examples": 10 * (place + 1), "accuracy": 0.1 * place * number, "loss": 1.0 / number}
            for place, key in enumerate(CLIENTS)
        },
        "server_metrics": {"accuracy": 0.05 * number},
    }
    return RoundReport(round=number, method="fedcome", **(found | values))
