"""Two passes over the pseudo-gradients: their Gram matrix, and their combination.

Both walk over the model in blocks of bounded size, so that the clients × parameters matrix never exists: beside the
replies, memory holds one block (at most 16 MiB, or one column of all clients) and, in the second pass, the new model.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .arrays import Arrays
from .updates import ClientUpdate, flat

_BLOCK_BYTES = 16 * 2**20  # fits in a server CPU's last-level cache; larger blocks were no faster

_Piece = tuple[str, slice, slice]  # array's name, place in the flattened array, columns of the block


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
    with np.errstate(invalid="ignore", over="ignore"):  # non-finite replies are found in the result and left out
        for _, block in _blocks(reference, updates, names):
            gram += block @ block.T  # NumPy calls BLAS's symmetric product here
    return gram


def combine(
    reference: Arrays, updates: Sequence[ClientUpdate], names: Sequence[str], coefficients: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    r"""The combination :math:`\sum_i c_i g_i` itself, by name, in float64. ``coefficients`` has shape ``[m]``."""
    total = {name: np.empty(reference[name].shape) for name in names}
    for pieces, block in _blocks(reference, updates, names):
        direction = coefficients @ block
        for name, piece, columns in pieces:
            total[name].reshape(-1)[piece] = direction[columns]
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
    for pieces, block in _blocks(reference, updates, names):
        direction = coefficients @ block
        for name, piece, columns in pieces:
            values = flat(reference[name])[piece].astype(np.float64) - direction[columns]
            if name in offset:
                values += offset[name].reshape(-1)[piece]
            with np.errstate(over="ignore"):
                new[name].reshape(-1)[piece] = values
            if not np.isfinite(new[name].reshape(-1)[piece]).all():
                raise OverflowError(f"the new values of array {name!r} do not fit its type {new[name].dtype}")
    return new


def _blocks(
    reference: Arrays, updates: Sequence[ClientUpdate], names: Sequence[str]
) -> Iterator[tuple[list[_Piece], NDArray[np.float64]]]:
    """Blocks of the pseudo-gradients, shape ``[m, width]``, each with the pieces of arrays that it holds.

    Small arrays share a block, large ones span several. The block's memory is reused: take what you need before
    the next one.
    """
    size = sum(reference[name].size for name in names)
    width = max(1, min(size, _BLOCK_BYTES // (8 * max(1, len(updates)))))
    memory = np.empty((len(updates), width))
    for pieces in _pieces(reference, names, width):
        used = pieces[-1][2].stop
        block = memory[:, :used]
        for row, update in zip(block, updates, strict=True):
            for name, piece, columns in pieces:
                update.write_pseudo_gradient(reference[name], name, piece, row[columns])
        yield pieces, block


def _pieces(reference: Arrays, names: Sequence[str], width: int) -> Iterator[list[_Piece]]:
    """The model cut into blocks of ``width`` numbers (the last may be narrower)."""
    pieces: list[_Piece] = []
    used = 0
    for name in names:
        size, start = reference[name].size, 0
        while start < size:
            length = min(size - start, width - used)
            pieces.append((name, slice(start, start + length), slice(used, used + length)))
            start, used = start + length, used + length
            if used == width:
                yield pieces
                pieces, used = [], 0
    if pieces:
        yield pieces
