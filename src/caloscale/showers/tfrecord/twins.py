"""Showers that are twice in a data set: the same ones in a rewritten file, or in a merged file beside its parts."""

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import ShowerFileError
from caloscale.showers.arrays import Showers


class Twins:
    """Compares all showers that it is shown, by a hash of their primaries and cells: 16 bytes for each shower."""

    def __init__(self) -> None:
        self._hashes: list[NDArray[np.uint64]] = []
        self._blocks: list[tuple[Path, NDArray[np.intp]]] = []

    def add(self, path: Path, showers: Showers, positions: NDArray[np.intp]) -> None:
        """Remember showers of a file, none of them empty (these are all equal), and their positions in it (N,)."""
        primaries = np.stack(list(showers.primaries.values()), axis=1)
        parts = zip(primaries, showers.cells_gev, strict=True)
        digests = [hashlib.blake2b(row.tobytes() + cells.tobytes(), digest_size=8).digest() for row, cells in parts]
        self._hashes.append(np.array([int.from_bytes(digest) for digest in digests], np.uint64))
        self._blocks.append((path, positions))

    def check(self) -> None:
        """Raises ShowerFileError when a shower was added twice."""
        hashes = np.concatenate(self._hashes)
        order = np.argsort(hashes, kind="stable")
        is_twin = hashes[order][1:] == hashes[order][:-1]
        if not is_twin.any():
            return
        first = int(np.argmax(is_twin))
        (path, position), (other, position_of_other) = (self._place(int(order[first + i])) for i in (1, 0))
        count = int(is_twin.sum())
        example = f"shower {position} (counted from 0) is also shower {position_of_other} of {other.name}"
        remedy = "remove one of the two files, or the repeated showers: a shower must not be in training and validation"
        problem = f"{count} showers are there twice: {example}"
        raise ShowerFileError(problem, file=path, field="cells", value=count, remedy=remedy)

    def _place(self, number: int) -> tuple[Path, int]:
        """The file of an added shower, and its position there."""
        for path, positions in self._blocks:
            if number < len(positions):
                return path, int(positions[number])
            number -= len(positions)
        raise IndexError(number)
