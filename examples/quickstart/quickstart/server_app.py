"""What the server does: choose the method, average, and test."""

from collections.abc import Callable
from typing import Any, cast

from flwr.app import ArrayRecord, Context, MetricRecord, UserConfig
from flwr.serverapp import Grid, ServerApp

from fedcome_flwr import (
    ConsensusSelection,
    Method,
    UniformSelection,
    UpdateStrategy,
    equal_step_control,
    fedavg,
    fedcome,
    feddc,
    feddyn,
    fedfv,
    fedprox,
    scaffold,
)
from fedcome_flwr.core import Selector
from fedcome_flwr.core.methods import ClientWeights
from fedcome_flwr.report import JsonLines
from quickstart import task
from quickstart.clamp import ClampedStrategy
from quickstart.data import all_test_images, num_classes
from quickstart.settings import DataSettings

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    settings = DataSettings.from_run_config(config)
    device = task.prepare_device(int(config["threads"]))
    images, labels = (part.to(device) for part in all_test_images(settings))
    model = task.initial_model(
        str(config["model"]), tuple(images.shape[1:]), num_classes(settings), int(config["seed"])
    ).to(device)

    num_rounds = int(config["num-server-rounds"])

    def test(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round % int(config["global-test-every"]) and server_round != num_rounds:
            return None
        model.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = task.evaluate(model, images, labels)
        penalty = task.decay_penalty(
            {name: array.numpy() for name, array in arrays.items()}, float(config["weight-decay"])
        )
        return MetricRecord({"loss": loss, "accuracy": accuracy, "decay-penalty": penalty})

    build_strategy(config).start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=num_rounds,
        evaluate_fn=test,
    )


def build_strategy(config: UserConfig) -> UpdateStrategy:
    """Return the strategy that the run's configuration describes."""
    selectors: dict[str, Callable[[], Selector]] = {
        "consensus": lambda: ConsensusSelection(
            mu=float(config["selection-mu"]), alpha=float(config["selection-alpha"])
        ),
        "uniform": UniformSelection,
    }
    report = str(config["report"])
    options: dict[str, Any] = {
        "method": _method(config),
        "selector": selectors[_choice(config, "selection", tuple(selectors))](),
        "seed": int(config["seed"]),
        "fraction_train": float(config["fraction-train"]),
        "fraction_evaluate": float(config["fraction-evaluate"]),
        "on_round": JsonLines(report) if report else None,
    }
    if bound := float(config["coordinate-bound"]):
        return ClampedStrategy(bound=bound, **options)
    return UpdateStrategy(
        checkpoint=str(config["checkpoint"]) or None, checkpoint_every=int(config["checkpoint-every"]), **options
    )


def _method(config: UserConfig) -> Method:
    if weighting := str(config["weighting"]):
        return equal_step_control(weighting)
    weights = cast(ClientWeights, _choice(config, "client-weights", ("examples", "uniform")))
    step = str(config["server-step"])
    methods: dict[str, Callable[[], Method]] = {
        "fedcome": lambda: fedcome(
            weights,
            server_step="adaptive" if step == "adaptive" else float(step),
            max_update_norm=float(config["max-update-norm"]) or None,
        ),
        "fedavg": lambda: fedavg(weights),
        "fedprox": lambda: fedprox(float(config["fedprox-mu"]), weights),
        "scaffold": scaffold,
        "feddyn": lambda: feddyn(float(config["feddyn-alpha"])),
        "feddc": lambda: feddc(float(config["feddc-alpha"])),
        "fedfv": lambda: fedfv(float(config["fedfv-alpha"]), int(config["fedfv-tau"])),
    }
    return methods[_choice(config, "strategy", tuple(methods))]()


def _choice(config: UserConfig, key: str, allowed: tuple[str, ...]) -> str:
    value = str(config[key])
    if value not in allowed:
        raise ValueError(f"{key}: expected one of {', '.join(allowed)}; got '{value}'")
    return value
