"""Showers that are twice in a data set: the same ones in a rewritten file, or in a merged file beside its parts; and
copies that are rounded, scaled or have another energy."""

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import ShowerFileError
from caloscale.showers.arrays import Showers

_BRIGHTEST = 24
"""Cells whose order is compared: of 4,000 parametrised showers of one energy and angle two pairs had an equal order of
16 cells, none of 20; of 7,000 Geant4 showers of the preset compact none of 16."""
_COPIES = 0.01
"""Part of the showers that may have the order of another one by chance."""
_REMEDY = "remove one of the two files, or the repeated showers: a shower must not be in training and validation"


class Twins:
    """Compares all showers that it is shown, by hashes of their primaries and cells, and of the order of their
    brightest cells: 16 bytes for each shower, and 16 more while they are compared."""

    def __init__(self) -> None:
        self._hashes: list[NDArray[np.uint64]] = []
        self._orders: list[NDArray[np.uint64]] = []
        self._blocks: list[tuple[Path, NDArray[np.intp]]] = []

    def add(self, path: Path, showers: Showers, positions: NDArray[np.intp]) -> None:
        """Remember showers of a file, none of them empty (these are all equal), and their positions in it (N,)."""
        primaries = np.stack(list(showers.primaries.values()), axis=1)
        parts = zip(primaries, showers.cells_gev, strict=True)
        self._hashes.append(np.array([_hash(row.tobytes() + cells.tobytes()) for row, cells in parts], np.uint64))
        self._orders.append(np.array([_hash(_brightest(cells)) for cells in showers.cells_gev], np.uint64))
        self._blocks.append((path, positions))

    def check(self) -> None:
        """Raises ShowerFileError when a shower was added twice, or many showers are copies of others."""
        count, path, example = self._repeated(np.concatenate(self._hashes))
        if count:
            problem = f"{count} showers are there twice: {example}"
            raise ShowerFileError(problem, file=path, field="cells", value=count, remedy=_REMEDY)
        orders = np.concatenate(self._orders)
        count, path, example = self._repeated(orders)
        if count > max(1, _COPIES * len(orders)):
            problem = (
                f"{count} showers look like rounded or scaled copies: by its {_BRIGHTEST} brightest cells {example}"
            )
            raise ShowerFileError(problem, file=path, field="cells", value=count, remedy=_REMEDY)

    def _repeated(self, hashes: NDArray[np.uint64]) -> tuple[int, Path | None, str]:
        """How many hashes, 0 aside, are there again, and the file and description of one of them."""
        order = np.argsort(hashes, kind="stable")
        is_twin = (hashes[order][1:] == hashes[order][:-1]) & (hashes[order][1:] != 0)
        if not is_twin.any():
            return 0, None, ""
        first = int(np.argmax(is_twin))
        (path, position), (other, position_of_other) = (self._place(order[first + i]) for i in (1, 0))
        example = f"shower {position} (counted from 0) is also shower {position_of_other} of {other.name}"
        return int(is_twin.sum()), path, example

    def _place(self, number: np.intp) -> tuple[Path, int]:
        """The file of an added shower, and its position there."""
        ends = np.cumsum([len(positions) for _, positions in self._blocks])
        block = int(np.searchsorted(ends, number, side="right"))
        path, positions = self._blocks[block]
        return path, int(positions[number - ends[block]])


def _hash(content: bytes) -> int:
    """0 without content."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest()) if content else 0


def _brightest(cells_gev: NDArray[np.float32]) -> bytes:
    """The numbers of the brightest cells of a shower in their order, which rounding and scaling seldom change; nothing
    where there are too few, or all are equal."""
    cells = cells_gev.ravel()
    numbers = np.flatnonzero(cells > 0.01 * cells.max())
    if len(numbers) < _BRIGHTEST:
        numbers = np.flatnonzero(cells)
    order = numbers[np.argsort(cells[numbers], kind="stable")[-_BRIGHTEST:]]
    is_ordered = len(order) == _BRIGHTEST and cells[order[0]] < cells[order[-1]]
    return order.tobytes() if is_ordered else b""
