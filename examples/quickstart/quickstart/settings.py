"""The part of the run's configuration that decides which images each client holds."""

import math
from dataclasses import dataclass

from flwr.app import UserConfig

EVALUATE_ON = ("test", "train", "validation")
PARTITIONS = ("classes", "dirichlet", "iid", "natural")
CLASS_ASSIGNMENTS = ("deterministic", "first-deterministic", "random")


@dataclass(frozen=True)
class DataSettings:
    """Hashable, so that a process keeps the loaded federation of each setting."""

    dataset: str = "digits"
    image_column: str = ""
    label_column: str = ""
    partition: str = "classes"
    partition_column: str = ""
    classes_per_client: int = 2
    class_assignment: str = "deterministic"
    alpha: float = 0.5
    least_images: int = 1
    images_per_client: int = 0
    test_images_per_client: int = 0
    evaluate_on: str = "test"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.partition not in PARTITIONS:
            raise ValueError(f"partition: expected one of {', '.join(PARTITIONS)}; got '{self.partition}'")
        if self.class_assignment not in CLASS_ASSIGNMENTS:
            names = ", ".join(CLASS_ASSIGNMENTS)
            raise ValueError(f"class-assignment: expected one of {names}; got '{self.class_assignment}'")
        if self.classes_per_client < 1:
            raise ValueError(f"classes-per-client: expected at least 1; got {self.classes_per_client}")
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ValueError(f"alpha: expected a finite number above 0; got {self.alpha}")
        if self.least_images < 1:
            raise ValueError(f"least-images: expected at least 1; got {self.least_images}")
        if self.evaluate_on not in EVALUATE_ON:
            raise ValueError(f"evaluate-on: expected one of {', '.join(EVALUATE_ON)}; got '{self.evaluate_on}'")
        for key, bound in (
            ("images-per-client", self.images_per_client),
            ("test-images-per-client", self.test_images_per_client),
        ):
            if bound < 0:
                raise ValueError(f"{key}: expected 0 (no bound) or more; got {bound}")
        if self.partition == "natural" and not self.partition_column:
            raise ValueError("partition-column: partition 'natural' needs a column, e.g. writer_id; got none")

    @classmethod
    def from_run_config(cls, config: UserConfig) -> "DataSettings":
        return cls(
            dataset=str(config["dataset"]),
            image_column=str(config["image-column"]),
            label_column=str(config["label-column"]),
            partition=str(config["partition"]),
            partition_column=str(config["partition-column"]),
            classes_per_client=int(config["classes-per-client"]),
            class_assignment=str(config["class-assignment"]),
            alpha=float(config["alpha"]),
            least_images=int(config["least-images"]),
            images_per_client=int(config["images-per-client"]),
            test_images_per_client=int(config["test-images-per-client"]),
            evaluate_on=str(config["evaluate-on"]),
            seed=int(config["seed"]),
        )
