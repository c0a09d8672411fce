"""A client's data: a pair of tensors, or batches that come as they are."""

from collections.abc import Iterable, Iterator, Sized
from typing import TypeGuard

import torch
from torch import Generator, Tensor
from torch.utils.data import Dataset

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, the examples along the first dimension of both."""

Data = Batch | Iterable[Batch]
"""All inputs and all targets; or batches that can be iterated again and again, such as a ``DataLoader``."""

EVALUATION_BATCH = 500  # bounds the memory of an evaluation on tensors, not its result


def check_data(data: Data) -> None:
    """Refuse data that cannot be read as batches; that batches are none shows when they are read."""
    if _is_pair(data):
        inputs, targets = data
        if len(inputs) != len(targets):
            raise ValueError(f"data: expected as many targets as inputs, found {len(targets)} and {len(inputs)}")
        check_examples(len(targets))
    elif isinstance(data, Dataset):
        raise ValueError(
            f"data: expected two tensors or batches, found the {type(data).__name__} itself; "
            "give a DataLoader(dataset, batch_size=…)"
        )
    elif isinstance(data, Iterator):
        raise ValueError(
            f"data: expected batches that can be read more than once, found a {type(data).__name__}; "
            "give a DataLoader or a list"
        )


def check_examples(count: int) -> None:
    """Refuse to go on without examples."""
    if count == 0:
        raise ValueError("data: expected at least one example, found none")


def look_at(data: Data) -> int:
    """Read the first batch; how many examples there are, 0 where only reading all of them would tell."""
    check_data(data)
    if _is_pair(data):
        return len(data[1])
    check_examples(len(next(_batches(data), ((), ()))[1]))
    dataset = getattr(data, "dataset", None)
    return len(dataset) if isinstance(dataset, Sized) else 0


def as_whole(data: Data) -> Batch:
    """All of the data as one batch."""
    if _is_pair(data):
        return data
    batches = list(_batches(data))
    check_examples(len(batches))
    return torch.cat([inputs for inputs, _ in batches]), torch.cat([targets for _, targets in batches])


def training_batches(data: Data, batch_size: int, order: Generator) -> Iterator[Batch]:
    """One epoch: tensors in random batches of ``batch_size`` (0: as one batch), other data as they come."""
    if not _is_pair(data):
        yield from _batches(data)
    elif not batch_size:
        yield data
    else:
        inputs, targets = data
        permutation = torch.randperm(len(targets), generator=order).to(targets.device)
        for chosen in torch.split(permutation, batch_size):
            yield inputs[chosen], targets[chosen]


def evaluation_batches(data: Data, max_examples: int = 0, max_batches: int = 0) -> Iterator[Batch]:
    """The data for an evaluation: tensors in large parts, other data as they come.

    Parameters
    ----------
    data
        The data.
    max_examples
        Tensors: so many examples at most, always the same random ones, since data are often sorted. 0: all.
    max_batches
        Other data: so many batches at most. 0: all.
    """
    if not _is_pair(data):
        for number, batch in enumerate(_batches(data), start=1):
            yield batch
            if number == max_batches:
                return
        return
    inputs, targets = data
    if 0 < max_examples < len(targets):
        chosen = torch.randperm(len(targets), generator=Generator().manual_seed(0))[:max_examples].to(targets.device)
        inputs, targets = inputs[chosen], targets[chosen]
    yield from zip(torch.split(inputs, EVALUATION_BATCH), torch.split(targets, EVALUATION_BATCH), strict=True)


def _is_pair(data: Data) -> TypeGuard[Batch]:
    return isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data)


def _batches(data: Data) -> Iterator[Batch]:
    for batch in data:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            found = f"{len(batch)} parts" if isinstance(batch, tuple | list) else f"a {type(batch).__name__}"
            raise ValueError(f"data: expected batches of two parts, inputs and targets, found {found}")
        yield batch[0], batch[1]
