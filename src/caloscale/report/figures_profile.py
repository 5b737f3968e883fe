"""Where the time of a training step goes: a stacked bar, and the same as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Page

from caloscale.report.drawing import page

PHASES = {
    "fakes": "showers for the discriminator",
    "discriminatorReal": "discriminator, real",
    "discriminatorFake": "discriminator, generated",
    "generator": "generator",
    "rest": "rest of the step",
}
PARTS = {
    "forward": ("forward", "#3b6ea5"),
    "backPropagation": ("back-propagation", "#c8322b"),
    "allReduce": ("all-reduce", "#7b5aa6"),
    "optimizer": ("optimiser", "#1c7a5f"),
    "inputWait": ("waiting for input", "#e0a030"),
    "idle": ("idle", "#c3ccd6"),
}
WHOLE = "the whole step"
LABELLED = 0.04
"""Shares from which on a bar carries its number."""


def shares_of(profile: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Share by phase and part, all phases and parts, with what belongs to no phase in a row of its own.

    profile: `training.profile.Profile`, camelCase. All shares together are 1.
    """
    shares = {title: dict.fromkeys(PARTS, 0.0) for title in PHASES.values()}
    for share in profile["shares"]:
        shares[PHASES[share["phase"]]][share["part"]] += share["share"]
    shares["no operation"] = dict.fromkeys(PARTS, 0.0) | {"inputWait": profile["inputWait"], "idle": profile["idle"]}
    return shares


def profile_rows(profile: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and rows of a table, percent of the step; the last row and column are sums."""
    shares = shares_of(profile)
    columns = ("% of the step", *(title for title, _ in PARTS.values()), "all")
    rows = [(title, *map(_percent, parts.values()), _percent(sum(parts.values()))) for title, parts in shares.items()]
    totals = [sum(parts[part] for parts in shares.values()) for part in PARTS]
    return columns, [*rows, (WHOLE, *map(_percent, totals), _percent(sum(totals)))]


def _percent(share: float) -> str:
    return f"{100 * share:.1f}" if share else ""


@contextmanager
def step_profile(profile: Mapping[str, Any]) -> Iterator[Page]:
    """A bar for the step, and below it one for each phase, all in percent of the step."""
    shares = shares_of(profile)
    bars = {WHOLE: {part: sum(parts[part] for parts in shares.values()) for part in PARTS}, **shares}
    bars = {title: parts for title, parts in bars.items() if sum(parts.values()) > 0}
    with page(11, 0.55 * len(bars) + 1.9) as figure:
        ax = figure.subplots()
        y = np.arange(len(bars))[::-1]
        left = np.zeros(len(bars))
        for part, (title, colour) in PARTS.items():
            widths = np.array([100 * parts[part] for parts in bars.values()])
            if not widths.any():
                continue
            ax.barh(y, widths, left=left, height=0.62, color=colour, label=title)
            for at, start, width in zip(y, left, widths):
                if width > 100 * LABELLED:
                    ink = "black" if part in ("idle", "inputWait") else "white"
                    ax.text(start + width / 2, at, f"{width:.0f}", ha="center", va="center", color=ink, fontsize=11)
            left += widths
        ax.set_yticks(y, list(bars))
        ax.tick_params(axis="y", which="both", left=False, right=False)
        ax.set_xlim(0, 100)
        ax.set_xlabel(f"% of a step of {profile['secondsPerStep']:.3g} s")
        figure.legend(loc="outside upper center", ncols=6, fontsize=11, columnspacing=1.2, handlelength=1.2)
        yield figure
