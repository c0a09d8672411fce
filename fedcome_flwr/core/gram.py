"""Two passes over the pseudo-gradients: their Gram matrix, and their combination.

Both walk over the model in blocks of bounded size, so that the clients × parameters matrix never exists: beside the
replies, memory holds a block for each thread (at most 4 MiB, or 256 columns of all clients), a few Gram matrices (at
most 32 MiB, or one) and, in the second pass, the new model. What is cut where and summed in which order depends on the
number of clients and on the model, never on the number of threads, which therefore does not show in the bytes.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .arrays import Arrays
from .updates import ClientUpdate, flat, write_pseudo_gradients

_BLOCK_BYTES = 4 * 2**20  # larger blocks were no faster
_WIDEST = 2**15  # columns: narrower blocks of few clients took up to twice as long, in NumPy's overhead
_NARROWEST = 2**8  # columns of very many clients
_TOGETHER = 16  # clients at a time in the second pass, whose blocks can then be wide
_LANES = 16  # most threads that can be used
_LANE_BYTES = 32 * 2**20  # of Gram matrices, one a lane
# OpenBLAS computes products of n × k by k × n with n² k <= 2^18 in one thread. Its own threads work against ours, were
# four times slower at 30 to 100 clients on a machine with other work, and may show in the last bits.
_PRODUCT = 2**18
_GROUP = 32  # most clients in a product, where it is about as fast as a large one

_Piece = tuple[str, slice, slice]  # array's name, place in the flattened array, columns of the block
_Block = list[_Piece]
_Memory = tuple[NDArray[np.float64], NDArray[np.float64]]
_T = TypeVar("_T")


def gram_matrix(reference: Arrays, updates: Sequence[ClientUpdate], names: Sequence[str]) -> NDArray[np.float64]:
    r"""Inner products of the clients' pseudo-gradients, :math:`K_{ij} = \langle g_i, g_j \rangle`, shape ``[m, m]``.

    Differences, products and sums are taken in float64 whatever the model's type: float32 products lose the
    certificate of near-singular Gram matrices. A client whose arrays hold NaN or infinity spoils its own row and
    column and no other.

    Parameters
    ----------
    reference
        The broadcast model.
    updates
        The clients' updates; their arrays have been checked against the reference.
    names
        The parameters.
    """
    gram = np.zeros((len(updates), len(updates)))
    if not updates:
        return gram
    lanes = max(1, min(_LANES, _LANE_BYTES // gram.nbytes))

    def partial(blocks: Sequence[_Block]) -> NDArray[np.float64]:
        part, memory = np.zeros_like(gram), _memory(blocks, len(updates))
        with np.errstate(invalid="ignore", over="ignore"):  # non-finite replies are found in the result and left out
            for pieces in blocks:
                _add_products(_filled(reference, updates, pieces, memory)[1], part)
        return part

    for part in _in_lanes(partial, _cut(reference, names, len(updates)), lanes):
        gram += part
    upper = np.triu_indices(len(gram), 1)
    gram.T[upper] = gram[upper]
    return gram


def combine(
    reference: Arrays, updates: Sequence[ClientUpdate], names: Sequence[str], coefficients: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    r"""The combination :math:`\sum_i c_i g_i` itself, by name, in float64. ``coefficients`` has shape ``[m]``."""
    total = {name: np.empty(reference[name].shape) for name in names}
    if not updates:
        return {name: np.zeros_like(array) for name, array in total.items()}

    def write(blocks: Sequence[_Block]) -> None:
        for pieces, _, direction in _combined(reference, updates, coefficients, blocks):
            for name, piece, columns in pieces:
                total[name].reshape(-1)[piece] = direction[columns]

    for _ in _in_lanes(write, _cut(reference, names, min(len(updates), _TOGETHER)), _LANES):
        pass
    return total


def apply_combination(
    reference: Arrays,
    updates: Sequence[ClientUpdate],
    names: Sequence[str],
    coefficients: NDArray[np.float64],
    offset: Mapping[str, NDArray[np.float64]] | None = None,
) -> dict[str, NDArray[np.generic]]:
    r"""The new parameters :math:`w_0 - \sum_i c_i g_i + o`, summed in float64 and then cast to the model's types.

    Parameters
    ----------
    coefficients
        One coefficient a client, shape ``[m]``, the server's step included.
    offset
        o by name, in the parameters' shapes; names that are not there have 0.

    Raises
    ------
    OverflowError
        A value does not fit the model's type; the text names the array.
    """
    offset = offset or {}
    new = {name: np.empty_like(reference[name], order="C", subok=False) for name in names}

    def write(blocks: Sequence[_Block]) -> str | None:
        """Fill the blocks' places in the new model; the first array that overflows, if one does."""
        for pieces, old, direction in _combined(reference, updates, coefficients, blocks):
            old -= direction
            for name, piece, columns in pieces:
                if name in offset:
                    old[columns] += offset[name].reshape(-1)[piece]
                place = new[name].reshape(-1)[piece]
                with np.errstate(over="ignore"):
                    place[:] = old[columns]
                if not np.isfinite(place).all():
                    return name
        return None

    for name in _in_lanes(write, _cut(reference, names, min(len(updates), _TOGETHER)), _LANES):
        if name is not None:
            raise OverflowError(f"the new values of array {name!r} do not fit its type {new[name].dtype}")
    return new


def _combined(
    reference: Arrays, updates: Sequence[ClientUpdate], coefficients: NDArray[np.float64], blocks: Sequence[_Block]
) -> Iterator[tuple[_Block, NDArray[np.float64], NDArray[np.float64]]]:
    """Each block's pieces, its part of the reference and of the combination, both of shape ``[width]``.

    The reference's memory is reused: take what you need before the next one.
    """
    memory = _memory(blocks, min(len(updates), _TOGETHER))
    for pieces in blocks:
        direction = np.zeros(pieces[-1][2].stop)
        for start in range(0, len(updates), _TOGETHER):
            group = slice(start, start + _TOGETHER)
            old, block = _filled(reference, updates[group], pieces, memory)
            direction += np.einsum("i,ij->j", coefficients[group], block)  # no BLAS product, for its threads
        yield pieces, old, direction


def _add_products(block: NDArray[np.float64], gram: NDArray[np.float64]) -> None:
    """Add the block's products to the Gram matrix, on and above the diagonal of groups of clients."""
    clients, width = block.shape
    groups = [slice(start, min(start + _GROUP, clients)) for start in range(0, clients, _GROUP)]
    depth = _power_of_two(_PRODUCT // min(clients, _GROUP) ** 2)
    deep = width - width % depth
    # [clients, width] as a stack of [clients, depth], and what remains at the model's end
    stacks = [block[:, :deep].reshape(clients, -1, depth).transpose(1, 0, 2), block[None, :, deep:]]
    for stack in (stack for stack in stacks if stack.size):
        for place, rows in enumerate(groups):
            for columns in groups[place:]:
                gram[rows, columns] += (stack[:, rows] @ stack[:, columns].transpose(0, 2, 1)).sum(axis=0)


def _in_lanes(work: Callable[[Sequence[_Block]], _T], blocks: Sequence[_Block], lanes: int) -> Iterator[_T]:
    """The results of ``lanes`` shares of the blocks, in order, computed by as many threads as there are processors."""
    shares = [blocks[lane::lanes] for lane in range(min(lanes, len(blocks)))]
    threads = min(_processors(), len(shares))
    if threads < 2:
        yield from map(work, shares)
    else:
        with ThreadPoolExecutor(threads) as pool:
            yield from pool.map(work, shares)


def _processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory(blocks: Sequence[_Block], clients: int) -> _Memory:
    """Room for the widest block."""
    width = max(pieces[-1][2].stop for pieces in blocks)
    return np.empty(width), np.empty((clients, width))


def _filled(reference: Arrays, updates: Sequence[ClientUpdate], pieces: _Block, memory: _Memory) -> _Memory:
    """A block of the reference and of the pseudo-gradients, shapes ``[width]`` and ``[m, width]``, in that memory."""
    used = pieces[-1][2].stop
    old, block = memory[0][:used], memory[1][: len(updates), :used]
    for name, piece, columns in pieces:
        old[columns] = flat(reference[name])[piece]
        write_pseudo_gradients(updates, old[columns], name, piece, block[:, columns])
    return old, block


def _cut(reference: Arrays, names: Sequence[str], clients: int) -> list[_Block]:
    """The model cut into blocks of one width (the last may be narrower); small arrays share a block."""
    width = min(_WIDEST, max(_NARROWEST, _power_of_two(_BLOCK_BYTES // (8 * clients))))
    blocks: list[_Block] = []
    pieces: _Block = []
    used = 0
    for name in names:
        size, start = reference[name].size, 0
        while start < size:
            length = min(size - start, width - used)
            pieces.append((name, slice(start, start + length), slice(used, used + length)))
            start, used = start + length, used + length
            if used == width:
                blocks.append(pieces)
                pieces, used = [], 0
    return [*blocks, pieces] if pieces else blocks


def _power_of_two(most: int) -> int:
    """The largest power of two that is not above ``most``, at least 1."""
    return 1 << max(most, 1).bit_length() - 1
