"""Figures of the run itself: training curves, time per stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Page

from caloscale.detector.axes import Floats
from caloscale.report.drawing import GENERATED, MONTE_CARLO, MONTE_CARLO_EDGE, page

POSITIONS = ("step", "steps", "epoch", "epochs")
LARGEST_NUMBER_OF_CURVES = 16
LONG = 120
"""Points from which on a curve is smoothed, its points shown pale behind."""


class Series(tuple[str, Floats, Floats]):
    """Name of the position (step, epoch), positions (N,), values (N,)."""


def read_history(history: Any) -> dict[str, Series]:
    """The curves of a training, by name, from any of the forms in which histories are written:

    a list of records ({step: 1, loss: 2.3}, ...), lists of equal length beside one called step or epoch, a list of
    values per name, {step: [...], value: [...]} per name, or a mapping of such things, whose names are put before.
    What is no number is left out.
    """
    if isinstance(history, Sequence) and not isinstance(history, str):
        return _from_records([record for record in history if isinstance(record, Mapping)])
    if not isinstance(history, Mapping):
        return {}
    position = next((p for p in POSITIONS if _are_numbers(history.get(p))), None)
    if position and "value" in history and isinstance(history["value"], Sequence):
        return _one("", position, history[position], history["value"])
    found: dict[str, Series] = {}
    for name, value in history.items():
        if name in POSITIONS and name == position:
            continue
        if isinstance(value, Sequence) and not isinstance(value, str):
            if value and isinstance(value[0], Mapping):
                inner = _from_records(list(value))
                found |= {_within(name, k): v for k, v in inner.items()}
            else:
                x = history[position] if position and len(history[position]) == len(value) else range(len(value))
                found |= _one(name, position or "step", x, value)
        elif isinstance(value, Mapping):
            found |= {_within(name, k): v for k, v in read_history(value).items()}
    return found


def _within(group: str, name: str) -> str:
    """The name of a curve of a group; that it is by step or by epoch, its axis says."""
    return name if group in POSITIONS else f"{group} {name}".strip()


def _from_records(records: Sequence[Mapping[str, Any]]) -> dict[str, Series]:
    if not records:
        return {}
    flat = [_flatten(record) for record in records]
    position = next((p for p in POSITIONS if p in flat[-1]), None)
    found: dict[str, Series] = {}
    for name in dict.fromkeys(key for record in flat for key in record):
        if name in POSITIONS:
            continue
        rows = [
            (record.get(position, k) if position else k, record[name])
            for k, record in enumerate(flat)
            if name in record
        ]
        found |= _one(name, position or "step", [x for x, _ in rows], [y for _, y in rows])
    return found


def _flatten(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name} ")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _one(name: str, position: str, x: Sequence[Any], y: Sequence[Any]) -> dict[str, Series]:
    pairs = [(a, b) for a, b in zip(x, y) if _is_number(a) and _is_number(b)]
    if not pairs:
        return {}
    xs, ys = (np.array(column, dtype=np.float64) for column in zip(*pairs))
    return {name: Series((position.rstrip("s"), xs, ys))}


def _are_numbers(values: Any) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str) and all(_is_number(v) for v in values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


@contextmanager
def training_curves(history: Any) -> Iterator[Page]:
    """A panel per curve, at most sixteen."""
    curves = dict(list(read_history(history).items())[:LARGEST_NUMBER_OF_CURVES])
    columns = min(4, max(len(curves), 1))
    rows = -(-max(len(curves), 1) // columns)
    with page(3.9 * columns, 2.9 * rows + 0.2) as figure:
        axes = figure.subplots(rows, columns, squeeze=False)
        for ax in axes.flat[len(curves) :]:
            ax.set_axis_off()
        for ax, (name, (position, x, y)) in zip(axes.flat, curves.items()):
            if len(x) > LONG:
                ax.plot(x, y, color=MONTE_CARLO, linewidth=0.8)
                width = max(5, len(x) // 40)
                smooth = np.convolve(y, np.ones(width) / width, mode="valid")
                ax.plot(x[width - 1 :], smooth, color=GENERATED, linewidth=1.6)
                low, high = np.quantile(y, [0.01, 0.99])
                margin = 0.1 * (high - low) or 0.1 * abs(high) or 1
                ax.set_ylim(low - margin, high + margin)
            else:
                ax.plot(x, y, "o-", color=GENERATED, markersize=3, linewidth=1.4)
            ax.set_title(words(name), fontsize=12)
            ax.set_xlabel(position)
        yield figure


@contextmanager
def stage_times(stages: Sequence[Mapping[str, Any]]) -> Iterator[Page]:
    """Wall and core seconds of each stage."""
    names = [str(stage.get("name") or stage.get("stage")) for stage in stages]
    wall = [float(stage.get("seconds") or 0) for stage in stages]
    core = [float(stage.get("coreSeconds") or 0) for stage in stages]
    with page(9, 0.62 * len(stages) + 1.3) as figure:
        ax = figure.subplots()
        y = np.arange(len(stages))[::-1]
        ax.barh(y + 0.2, wall, height=0.36, color=GENERATED, label="wall seconds")
        ax.barh(y - 0.2, core, height=0.36, color=MONTE_CARLO, edgecolor=MONTE_CARLO_EDGE, label="core seconds")
        largest = max([*wall, *core, 1e-9])
        for at, seconds in [*zip(y + 0.2, wall), *zip(y - 0.2, core)]:
            ax.text(seconds + 0.01 * largest, at, f"{seconds:.3g} s", va="center", fontsize=11)
        ax.set_yticks(y, names)
        ax.tick_params(axis="y", which="both", left=False, right=False)
        ax.set_xlim(0, 1.15 * largest)
        ax.set_xlabel("seconds")
        ax.legend(loc="lower right")
        yield figure


def words(name: str) -> str:
    """generatorLoss, generator_loss or generator/loss as "generator loss"."""
    spaced = "".join(f" {c.lower()}" if c.isupper() and k and name[k - 1].islower() else c for k, c in enumerate(name))
    return " ".join(spaced.replace("_", " ").replace("/", " ").replace(".", " ").split())
