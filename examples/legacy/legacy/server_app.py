"""The server, on FedAvg; `git apply fedcome.diff` puts FedCOME in its place."""

from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp

from legacy.task import zeros


def mean_accuracy(results):
    examples = sum(count for count, _ in results)
    return {"accuracy": sum(count * metrics["accuracy"] for count, metrics in results) / examples}


def server_fn(context: Context) -> ServerAppComponents:
    strategy = FedAvg(
        fraction_fit=float(context.run_config["fraction-fit"]),
        initial_parameters=ndarrays_to_parameters(zeros()),
        evaluate_metrics_aggregation_fn=mean_accuracy,
    )
    config = ServerConfig(num_rounds=int(context.run_config["num-server-rounds"]))
    return ServerAppComponents(strategy=strategy, config=config)


app = ServerApp(server_fn=server_fn)
