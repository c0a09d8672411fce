"""Which rows of a data set belong to which client."""

import warnings
from typing import Any

import numpy as np
from datasets import Dataset
from flwr_datasets.partitioner import (
    DirichletPartitioner,
    IidPartitioner,
    NaturalIdPartitioner,
    Partitioner,
    PathologicalPartitioner,
)
from numpy.typing import NDArray

from quickstart.settings import DataSettings

Rows = NDArray[np.int64]
LEAST_IMAGES = 10  # a Dirichlet draw that leaves a client with fewer is repeated


def partition_rows(
    settings: DataSettings,
    num_clients: int,
    *,
    train: dict[str, NDArray[Any]],
    test: dict[str, NDArray[Any]],
) -> tuple[list[Rows], list[Rows]]:
    """Return every client's rows of the train split and of the test split.

    `train` and `test` hold the column `label` and, for `partition = "natural"`, the column `group`.
    """
    labels = train["label"]
    if settings.partition == "natural":
        train, test = _without_small_groups(settings.least_images, train, test)
    _check_columns(settings, num_clients, train, test)
    train_rows = _split(settings, num_clients, train, "train")
    if settings.partition == "dirichlet":
        test_rows = _follow_shares(train_rows, train["label"], test["label"], settings.seed)
    else:
        test_rows = _split(settings, num_clients, test, "test")
    _check_complete(settings, {"train": train_rows, "test": test_rows}, labels)
    limit = settings.images_per_client or None
    test_limit = settings.test_images_per_client or limit
    return [rows[:limit] for rows in train_rows], [rows[:test_limit] for rows in test_rows]


def _without_small_groups(
    least: int, train: dict[str, NDArray[Any]], test: dict[str, NDArray[Any]]
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Both splits without the groups that have fewer than `least` rows of the train split; the column `row` says
    where the others stand."""
    groups, counts = np.unique(train["group"], return_counts=True)
    small = groups[counts < least]
    kept = []
    for columns in (train, test):
        rows = np.flatnonzero(~np.isin(columns["group"], small))
        kept.append({name: values[rows] for name, values in columns.items()} | {"row": rows})
    return kept[0], kept[1]


def _check_columns(
    settings: DataSettings, num_clients: int, train: dict[str, NDArray[Any]], test: dict[str, NDArray[Any]]
) -> None:
    fewest = min(len(train["label"]), len(test["label"]))
    if num_clients > fewest:
        raise ValueError(f"clients: expected at most {fewest}, as many as test images; got {num_clients}")
    if settings.partition == "classes":
        classes = set(train["label"].tolist())
        if settings.classes_per_client > len(classes):
            raise ValueError(
                f"classes-per-client: expected at most {len(classes)}, the number of classes in "
                f"'{settings.dataset}'; got {settings.classes_per_client}"
            )
        _check_same(classes, set(test["label"].tolist()), "classes")
    if settings.partition == "natural":
        groups = set(train["group"].tolist())
        _check_same(groups, set(test["group"].tolist()), f"values of '{settings.partition_column}'")
        if num_clients > len(groups):
            raise ValueError(
                f"clients: expected at most {len(groups)}, the number of values of "
                f"'{settings.partition_column}'; got {num_clients}"
            )


def _check_same(train: set[Any], test: set[Any], what: str) -> None:
    # The partitioners number what they find in a split, so a value that one lacks would shift all others.
    if odd := sorted(train ^ test):
        raise ValueError(f"{what}: expected the same ones in train and test; {odd[:5]} occur in one only")


def _check_complete(settings: DataSettings, rows: dict[str, list[Rows]], labels: NDArray[Any]) -> None:
    for split, clients in rows.items():
        for client, mine in enumerate(clients):
            if len(mine) == 0:
                raise ValueError(
                    f"client {client} of {len(clients)} has no {split} images with partition "
                    f"'{settings.partition}': use fewer clients or another partition"
                )
    unused = set(labels.tolist()) - set(labels[np.concatenate(rows["train"])].tolist())
    if settings.partition == "classes" and unused:
        warnings.warn(
            f"no client holds the classes {sorted(unused)}: more clients, more classes-per-client, or "
            f"class-assignment 'deterministic' would use them",
            stacklevel=2,
        )


def _split(settings: DataSettings, num_clients: int, columns: dict[str, NDArray[Any]], split: str) -> list[Rows]:
    # Two of the partitioners keep the order of the rows, and the first rows are what a limited client keeps.
    order = np.random.default_rng(settings.seed).permutation(len(columns["label"]))
    partitioner = _partitioner(settings, num_clients, len(order))
    # The partitioners select whole rows; numbers instead of images make that cheap.
    numbered = {"row": np.arange(len(order)), **columns}
    partitioner.dataset = Dataset.from_dict({name: values[order] for name, values in numbered.items()})
    try:
        # Tiny alphas may offer a class to full clients only: 0/0, and the last client takes it.
        with warnings.catch_warnings(), np.errstate(invalid="ignore"):
            # Each repeated Dirichlet draw warns, though a bounded number of repetitions is what we ask for.
            warnings.filterwarnings("ignore", message=r"The specified min_partition_size")
            # It names an option that does not exist; _check_complete says the same with ours.
            warnings.filterwarnings("ignore", message=r"Classes: .* will NOT be used")
            parts = [partitioner.load_partition(client) for client in range(num_clients)]
    except ValueError as error:
        raise ValueError(
            f"partition '{settings.partition}' of '{settings.dataset}', {split} split, {num_clients} clients "
            f"(classes-per-client {settings.classes_per_client}, alpha {settings.alpha}): {error}"
        ) from error
    return [np.asarray(part["row"], dtype=np.int64) for part in parts]


def _partitioner(settings: DataSettings, num_clients: int, num_rows: int) -> Partitioner:
    match settings.partition:
        case "classes":
            return PathologicalPartitioner(
                num_clients,
                "label",
                settings.classes_per_client,
                settings.class_assignment,
                seed=settings.seed,
            )
        case "dirichlet":
            return DirichletPartitioner(
                num_clients,
                "label",
                settings.alpha,
                # Half the mean at most: a larger minimum may have no solution.
                min_partition_size=max(1, min(LEAST_IMAGES, num_rows // (2 * num_clients))),
                # As in the partition's original code; without it small alphas rarely meet the minimum.
                self_balancing=True,
                seed=settings.seed,
            )
        case "natural":
            return NaturalIdPartitioner("group")
        case _:
            return IidPartitioner(num_clients)


def _follow_shares(
    train_rows: list[Rows], train_labels: NDArray[Any], test_labels: NDArray[Any], seed: int
) -> list[Rows]:
    """Deal out the test rows of each class in proportion to the clients' train rows of that class.

    A second Dirichlet partitioner with the same seed would not do: it repeats its draw, and stops giving to a
    client, depending on the sizes of the split, so that train and test would follow different proportions.
    """
    num_classes = int(max(train_labels.max(), test_labels.max())) + 1
    held = np.stack([np.bincount(train_labels[rows], minlength=num_classes) for rows in train_rows])
    available = np.bincount(test_labels, minlength=num_classes)
    exact = held * available / np.maximum(held.sum(axis=0), 1)
    dealt = np.floor(exact).astype(np.int64)
    for label in range(num_classes):
        left = round(exact[:, label].sum()) - dealt[:, label].sum()
        dealt[np.argsort(dealt[:, label] - exact[:, label], kind="stable")[:left], label] += 1
    for client in np.flatnonzero(dealt.sum(axis=1) == 0):
        label = held[client].argmax()
        donor = dealt[:, label].argmax()
        if dealt[donor].sum() > 1:
            dealt[donor, label] -= 1
            dealt[client, label] += 1

    rng = np.random.default_rng(seed)
    parts: list[list[Rows]] = [[] for _ in train_rows]
    for label in range(num_classes):
        rows = rng.permutation(np.flatnonzero(test_labels == label))
        for part, piece in zip(parts, np.split(rows, np.cumsum(dealt[:, label])[:-1]), strict=True):
            part.append(piece)
    # np.split hands the last client whatever is over: nothing, or a class that no client trains on.
    parts[-1] = [p[: dealt[-1, label]] for label, p in enumerate(parts[-1])]
    return [rng.permutation(np.concatenate(part)) for part in parts]
