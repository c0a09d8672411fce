"""What the server does: choose the method, average, and test."""

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
)
from fedcome_flwr.report import JsonLines
from quickstart import task
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
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    build_strategy(config).start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=num_rounds,
        evaluate_fn=test,
    )


def build_strategy(config: UserConfig) -> UpdateStrategy:
    """Return the strategy that the run's configuration describes."""
    selectors = {"consensus": ConsensusSelection, "uniform": UniformSelection}
    report = str(config["report"])
    return UpdateStrategy(
        method=_method(config),
        selector=selectors[_choice(config, "selection", tuple(selectors))](),
        seed=int(config["seed"]),
        fraction_train=float(config["fraction-train"]),
        fraction_evaluate=float(config["fraction-evaluate"]),
        on_round=JsonLines(report) if report else None,
    )


def _method(config: UserConfig) -> Method:
    if weighting := str(config["weighting"]):
        return equal_step_control(weighting)
    weights = _choice(config, "client-weights", ("examples", "uniform"))
    if _choice(config, "strategy", ("fedcome", "fedavg")) == "fedavg":
        return fedavg(client_weights=weights)
    step = str(config["server-step"])
    return fedcome(client_weights=weights, server_step=step if step == "adaptive" else float(step))


def _choice(config: UserConfig, key: str, allowed: tuple[str, ...]) -> str:
    value = str(config[key])
    if value not in allowed:
        raise ValueError(f"{key}: expected one of {', '.join(allowed)}; got '{value}'")
    return value
