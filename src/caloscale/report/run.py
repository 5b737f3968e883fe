"""Sections and figures of a report about the run itself: training, profile of the training step, speed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caloscale.detector.axes import Floats
from caloscale.profiling.result import Profile
from caloscale.report.blocks import Cell, Fact, Facts, Figure, Section, Table, Text, Values, words
from caloscale.report.drawing import GENERATED, MONTE_CARLO, Drawing, new_page, new_panels
from caloscale.spec.block import Block

MOST_CURVES = 16
LONG = 120
"""Points from which on a curve is smoothed, its points shown pale below it."""
PHASES = {
    # Other families' phases are shown by their names.
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


@dataclass(frozen=True)
class Series:
    """A curve of the training: positions (N,), called step or epoch, and values (N,)."""

    position: str
    x: Floats
    y: Floats


def read_history(history: Mapping[str, Any]) -> dict[str, Series]:
    """The curves of training/history.json by name: lists beside one called step or epoch, groups of such lists.

    Values that are not finite are not drawn.
    """
    position = next((name for name in ("step", "epoch") if name in history), None)
    curves: dict[str, Series] = {}
    for name, content in history.items():
        if isinstance(content, Mapping):
            curves |= {f"{name} {inner}": series for inner, series in read_history(content).items()}
        elif position is not None and name != position and content:
            y = np.array(content, dtype=np.float64)
            x = np.array(history[position][-len(y) :], dtype=np.float64)
            finite = np.isfinite(y)
            if finite.any():
                curves[name] = Series(position, x[finite], y[finite])
    return curves


def training_curves(history: Mapping[str, Any]) -> Drawing | None:
    """A panel per curve, at most `MOST_CURVES`."""
    curves = dict(list(read_history(history).items())[:MOST_CURVES])
    if not curves:
        return None
    page, axes = new_panels(len(curves), 4, 3.9, 2.9)
    for ax, (name, curve) in zip(axes, curves.items()):
        if len(curve.x) > LONG:
            ax.plot(curve.x, curve.y, color=MONTE_CARLO, linewidth=0.8)
            width = max(5, len(curve.x) // 40)
            smooth = np.convolve(curve.y, np.ones(width) / width, mode="valid")
            ax.plot(curve.x[width - 1 :], smooth, color=GENERATED, linewidth=1.6)
            low, high = np.quantile(curve.y, [0.01, 0.99])
            margin = 0.1 * (high - low) or 0.1 * abs(high) or 1
            ax.set_ylim(low - margin, high + margin)
        else:
            ax.plot(curve.x, curve.y, "o-", color=GENERATED, markersize=3, linewidth=1.4)
        ax.set_title(words(name), fontsize=12)
        ax.set_xlabel(curve.position)
    seen = [f"{words(name)} from {curve.y[0]:.3g} to {curve.y[-1]:.3g}" for name, curve in curves.items()]
    return Drawing(
        "training_curves",
        "Training curves",
        "Each panel is a quantity that the training recorded; long curves are smoothed, pale: as recorded.",
        f"First and last values: {', '.join(seen)}.",
        page,
    )


def shares_of(profile: Profile) -> dict[str, dict[str, float]]:
    """Share by phase and part, with a separate row for what belongs to no phase; last the whole step, 1 together."""
    shares: dict[str, dict[str, float]] = {}
    for share in profile.shares:
        title = PHASES.get(share.phase, words(share.phase))
        shares.setdefault(title, dict.fromkeys(PARTS, 0.0))[share.part] += share.share
    shares["no operation"] = dict.fromkeys(PARTS, 0.0) | {"inputWait": profile.input_wait, "idle": profile.idle}
    return shares | {WHOLE: {part: sum(parts[part] for parts in shares.values()) for part in PARTS}}


def profile_table(profile: Profile) -> Table:
    """The profile in per cent of the step; the last row and column are sums."""
    return Table(
        caption=f"{profile.preset}, {profile.device}, {profile.precision}: {profile.steps} steps of {profile.batch} "
        f"showers, {profile.seconds_per_step:.3g} s each; per cent of a step",
        columns=("phase", *(title for title, _ in PARTS.values()), "all"),
        rows=tuple(
            (title, *map(_percent, parts.values()), _percent(sum(parts.values())))
            for title, parts in shares_of(profile).items()
        ),
        total=True,
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f}" if share else ""


def step_profile(profile: Profile) -> Drawing:
    """A bar for the step, and below it one for each phase, all in per cent of the step."""
    shares = shares_of(profile)
    totals = shares.pop(WHOLE)
    bars = {title: parts for title, parts in {WHOLE: totals, **shares}.items() if sum(parts.values()) > 0}
    page = new_page(11, 0.55 * len(bars) + 1.9)
    ax = page.subplots()
    y = np.arange(len(bars))[::-1]
    ax.set_yticks(y, list(bars))
    ax.tick_params(axis="y", which="both", left=False, right=False)
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
    ax.set(xlim=(0, 100), xlabel=f"% of a step of {profile.seconds_per_step:.3g} s")
    page.legend(loc="outside upper center", ncols=6, fontsize=11, columnspacing=1.2, handlelength=1.2)
    seen = [f"{PARTS[part][0]} {_percent(share)} %" for part, share in totals.items() if share]
    return Drawing(
        "step_profile",
        "Where the time of a training step goes",
        f"From TensorFlow's profiler, {profile.steps} steps of {profile.batch} showers: an instant belongs to the "
        f"operations that run then, in equal parts. {profile.statement}",
        f"Stacked bars of the step and of its phases. The whole step: {', '.join(seen)}.",
        page,
    )


class StageSummary(Block):
    """One stage."""

    seconds: float
    """Wall time, s."""
    core_seconds: float
    """Processor time, s."""
    peak_memory_mib: float
    """Largest resident memory, MiB."""
    outcome: str
    """succeeded, failed or interrupted."""


def training_section(figures: Sequence[Figure], training: Mapping[str, Any]) -> Section | None:
    """What was trained, with its figures; None where nothing was. training: names and values."""
    if not figures and not training:
        return None
    return Section("Training", (*((Values(training),) if training else ()), *figures))


def profile_section(profile: Profile, figures: Sequence[Figure]) -> Section:
    """Where the time of a training step goes."""
    rates = (
        (
            "achieved by the step",
            profile.gflops,
            f"{profile.gflop_per_step:.3g} GFLOP in {profile.seconds_per_step:.3g} s",
        ),
        (
            "in convolutions and matrix products",
            profile.matrix_gflops,
            f"in the {100 * profile.matrix_share:.0f} % of the busy time that they take",
        ),
        ("peak of the machine", profile.peak_gflops, f"a large matrix product in {profile.precision}, measured"),
    )
    facts = Facts(tuple(Fact(label, f"{rate:.3g} GFLOP/s", detail) for label, rate, detail in rates))
    return Section("Profile of the training step", (Text(profile.statement), facts, profile_table(profile), *figures))


def speed_section(speeds: Sequence[Fact], stages: Mapping[str, StageSummary]) -> Section:
    """How fast the run was, and what its stages took."""
    rows: list[dict[str, str | Cell]] = [
        {
            "stage": name,
            "outcome": Cell(stage.outcome, "" if stage.outcome == "succeeded" else "bad"),
            "wall seconds": f"{stage.seconds:.1f}",
            "core seconds": f"{stage.core_seconds:.1f}",
            "peak memory, MiB": f"{stage.peak_memory_mib:.0f}" if stage.peak_memory_mib else "",
        }
        for name, stage in stages.items()
    ]
    facts = (Facts(tuple(speeds)),) if speeds else ()
    return Section("Speed", (*facts, *((Table.of("Stages of the run", rows),) if rows else ())))
