"""The client, as it always was."""

from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import Context

from legacy.task import client_digits, loss_and_accuracy, train


class DigitsClient(NumPyClient):
    def __init__(self, partition: int, learning_rate: float) -> None:
        self.images, self.labels = client_digits(partition)
        self.learning_rate = learning_rate

    def fit(self, parameters, config):
        return train(parameters, self.images, self.labels, self.learning_rate), len(self.labels), {}

    def evaluate(self, parameters, config):
        loss, accuracy = loss_and_accuracy(parameters, self.images, self.labels)
        return loss, len(self.labels), {"accuracy": accuracy}


def client_fn(context: Context) -> Client:
    partition = int(context.node_config["partition-id"])
    return DigitsClient(partition, float(context.run_config["learning-rate"])).to_client()


app = ClientApp(client_fn=client_fn)
