"""Every client's images, decoded once per process."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, load_dataset
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms import v2

from quickstart.partition import Rows, partition_rows
from quickstart.settings import DataSettings

# Where a data set has several class columns: FEMNIST's classes, and the fine ones of CIFAR-100.
PREFERRED_LABELS = ("character", "fine_label", "label")
NORMALISING_IMAGES = 5000  # their mean and deviation are those of the whole split to about half a percent
CACHED_CLIENTS = 128  # a process keeps the normalised images of so many clients; of the others it keeps the bytes
HELD_OUT = 0.25  # share of each class (or natural client) for testing, where the data set has no test split


@dataclass(frozen=True)
class Images:
    """Images [n, channels, height, width] as bytes, a quarter of the memory of floats, and labels [n]."""

    images: Tensor
    labels: Tensor

    def select(self, rows: Rows, normalise: v2.Transform) -> tuple[Tensor, Tensor]:
        """Return normalised float32 images and int64 labels."""
        chosen = torch.from_numpy(rows)
        return normalise(self.images[chosen]), self.labels[chosen]

    def normalisation(self) -> v2.Transform:
        """The transform that gives these images mean 0 and deviation 1 in each channel."""
        pixels = self.images.transpose(0, 1).flatten(1).double() / 255
        deviation = pixels.std(1, correction=0).clamp(min=1 / 255)  # a channel may have one value only
        normalise = v2.Normalize(pixels.mean(1).tolist(), deviation.tolist())
        return v2.Compose([v2.ToDtype(torch.float32, scale=True), normalise])


@dataclass(frozen=True)
class Source:
    """The two splits of a data set, not yet decoded, and what is known of their columns."""

    train: Dataset
    test: Dataset
    image_column: str
    label_column: str
    num_classes: int

    def decode(self, split: Dataset) -> Images:
        pixels: list[NDArray[np.uint8]] = []
        for batch in split.select_columns(self.image_column).iter(batch_size=1000):
            for picture in batch[self.image_column]:
                plain = picture if picture.mode in ("L", "RGB") else picture.convert("RGB")
                pixels.append(np.atleast_3d(np.asarray(plain)))
                if pixels[-1].shape != pixels[0].shape:
                    raise ValueError(
                        f"image {len(pixels) - 1} of '{self.image_column}': expected shape "
                        f"{pixels[0].shape}, as the first one; got {pixels[-1].shape}"
                    )
        return Images(
            # Channels stay innermost in memory, as decoded: convolutions on CPUs are a fifth faster so.
            torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2),
            torch.tensor(np.asarray(split[self.label_column]), dtype=torch.int64),
        )


@dataclass(frozen=True)
class Federation:
    """All clients' data: the images once, and the positions among them that each client holds."""

    train: Images
    test: Images
    train_rows: list[Rows]
    test_rows: list[Rows]


@lru_cache(maxsize=CACHED_CLIENTS)
def train_images(settings: DataSettings, num_clients: int, client: int) -> tuple[Tensor, Tensor]:
    """Return one client's normalised training images and their labels."""
    federation = _federation(settings, num_clients)
    return federation.train.select(federation.train_rows[client], _normalise(settings))


@lru_cache(maxsize=CACHED_CLIENTS)
def test_images(settings: DataSettings, num_clients: int, client: int) -> tuple[Tensor, Tensor]:
    """Return one client's normalised test images and their labels."""
    federation = _federation(settings, num_clients)
    return federation.test.select(federation.test_rows[client], _normalise(settings))


def all_test_images(settings: DataSettings) -> tuple[Tensor, Tensor]:
    """Return the whole test split, normalised, and its labels: what the server tests on."""
    split = _test_split(settings)
    return split.select(np.arange(len(split.labels)), _normalise(settings))


def image_shape(settings: DataSettings) -> tuple[int, ...]:
    """Return channels, height and width of the images."""
    return tuple(_test_split(settings).images.shape[1:])


def num_classes(settings: DataSettings) -> int:
    """Return the number of classes that the label column declares."""
    return _source(settings).num_classes


@lru_cache(maxsize=2)
def _federation(settings: DataSettings, num_clients: int) -> Federation:
    source = _source(settings)
    train_rows, test_rows = partition_rows(
        settings,
        num_clients,
        train=_columns(source.train, source.label_column, settings),
        test=_columns(source.test, source.label_column, settings),
    )
    # With few images a client, most of the split is never decoded.
    used = np.unique(np.concatenate(train_rows))
    train = source.decode(source.train.select(used))
    train_rows = [np.searchsorted(used, rows) for rows in train_rows]
    match settings.evaluate_on:
        case "train":
            return Federation(train, train, train_rows, train_rows)
        case "validation":
            parts = [_last_fifth(client, rows) for client, rows in enumerate(train_rows)]
            return Federation(train, train, [rest for rest, _ in parts], [fifth for _, fifth in parts])
        case _:
            return Federation(train, _test_split(settings), train_rows, test_rows)


def _last_fifth(client: int, rows: Rows) -> tuple[Rows, Rows]:
    """Rows to train on and rows to validate on; a partition's rows are in random order."""
    if len(rows) < 2:
        raise ValueError(f"evaluate-on: 'validation' needs two images a client; client {client} has {len(rows)}")
    count = max(1, round(len(rows) / 5))
    return rows[:-count], rows[-count:]


@lru_cache(maxsize=2)
def _test_split(settings: DataSettings) -> Images:
    source = _source(settings)
    return source.decode(source.test)


@lru_cache(maxsize=2)
def _normalise(settings: DataSettings) -> v2.Transform:
    """By training images taken evenly from the whole split, so that server and clients agree whoever they are."""
    train = _source(settings).train
    rows = np.unique(np.linspace(0, len(train) - 1, NORMALISING_IMAGES).astype(np.int64))
    return _source(settings).decode(train.select(rows)).normalisation()


@lru_cache(maxsize=2)
def _source(settings: DataSettings) -> Source:
    splits = DatasetDict(train=_digits()) if settings.dataset == "digits" else load_dataset(settings.dataset)
    if "train" not in splits:
        raise ValueError(f"dataset '{settings.dataset}': expected a split 'train'; got {list(splits)}")
    features = splits["train"].features
    image_column = _find_column(features, Image, settings.image_column, "image-column", ())
    label_column = _find_column(features, ClassLabel, settings.label_column, "label-column", PREFERRED_LABELS)
    if settings.partition == "natural" and settings.partition_column not in features:
        raise ValueError(
            f"partition-column: no column '{settings.partition_column}' in '{settings.dataset}'; "
            f"it has {list(features)}"
        )
    if "test" not in splits:
        group = settings.partition_column if settings.partition == "natural" else label_column
        splits = _hold_out(splits["train"], np.asarray(splits["train"][group]))
    return Source(splits["train"], splits["test"], image_column, label_column, features[label_column].num_classes)


def _columns(split: Dataset, label_column: str, settings: DataSettings) -> dict[str, NDArray[Any]]:
    columns = {"label": np.asarray(split[label_column])}
    if settings.partition == "natural":
        columns["group"] = np.asarray(split[settings.partition_column])
    return columns


def _find_column(features: Features, kind: type, given: str, key: str, preferred: tuple[str, ...]) -> str:
    fitting = [name for name, feature in features.items() if isinstance(feature, kind)]
    if given:
        if given not in features:
            raise ValueError(f"{key}: no column '{given}'; the data set has {list(features)}")
        if given not in fitting:
            raise ValueError(f"{key}: expected '{given}' to be {kind.__name__}; it is {features[given]}")
        return given
    candidates = [name for name in preferred if name in fitting][:1] or fitting
    if len(candidates) != 1:
        raise ValueError(
            f"{key}: expected one {kind.__name__} column; found {fitting} among {list(features)}. Name it."
        )
    return candidates[0]


def _digits() -> Dataset:
    """Scikit-learn's 1,797 handwritten digits of 8×8 pixels: real data that needs no download."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return Dataset.from_dict(
        {"image": list((digits.images * (255 / 16)).astype(np.uint8)), "label": digits.target},
        features=Features(image=Image(), label=ClassLabel(num_classes=10)),
    )


def _hold_out(data: Dataset, groups: NDArray[Any]) -> DatasetDict:
    """Split off a test set that holds every group; the same one in every run."""
    rng = np.random.default_rng(0)
    held_out = np.zeros(len(groups), dtype=bool)
    for group in np.unique(groups):
        rows = rng.permutation(np.flatnonzero(groups == group))
        held_out[rows[: max(1, round(HELD_OUT * len(rows)))]] = True
    return DatasetDict(train=data.select(np.flatnonzero(~held_out)), test=data.select(np.flatnonzero(held_out)))
