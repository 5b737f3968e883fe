"""Quantities as Kubernetes writes them: 64, 500m, 240Gi."""

from __future__ import annotations

_SUFFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3}
_SUFFIXES |= {letter: 1e3**power for power, letter in enumerate("MGTPE", 2)}
_SUFFIXES |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)}


def number(quantity: str | int | float) -> float:
    """The number of a quantity (bytes, processors, accelerators); raises ValueError for nonsense."""
    text = str(quantity)
    digits = text.rstrip("numkKMGTPEi") if not text[-1:].isdigit() else text
    suffix = text[len(digits) :]
    if suffix not in _SUFFIXES:
        raise ValueError(f"{quantity!r} is not a quantity")
    return float(digits) * _SUFFIXES[suffix]
