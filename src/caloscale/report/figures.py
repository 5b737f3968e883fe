"""All figures of a comparison and of a run, as PNG for pages and PDF for papers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure as Page

from caloscale.physics.result import Evaluation
from caloscale.progress import bar
from caloscale.report import figures_energy, figures_profile, figures_run, figures_shapes, figures_showers
from caloscale.report.figure_data import FigureData
from caloscale.storage.atomic import atomic_writer

DOTS_PER_INCH = 130

Drawer = Callable[[Evaluation, FigureData], AbstractContextManager[Page]]


@dataclass(frozen=True)
class Figure:
    """A figure on disk, with what a reader is told about it."""

    name: str
    title: str
    caption: str
    png: Path
    pdf: Path


@dataclass(frozen=True)
class Entry:
    """A figure that can be drawn; drawable: whether there is anything to draw."""

    name: str
    title: str
    caption: str
    draw: Drawer
    drawable: bool


def draw_figures(evaluation: Evaluation, data: FigureData, folder: Path) -> list[Figure]:
    """Draw all figures of a comparison into a folder, <name>.png and <name>.pdf, in the order of a report.

    Figures whose numbers are absent are left out. Raises StorageError.
    """
    drawn = []
    chosen = [entry for entry in catalogue(evaluation, data) if entry.drawable]
    with bar("figures", len(chosen), "figures") as progress:
        for entry in chosen:
            drawn.append(_save(folder, entry.name, entry.title, entry.caption, entry.draw(evaluation, data)))
            progress.update(1)
    return drawn


def draw_run_figures(
    folder: Path,
    *,
    history: Any = None,
    stages: Sequence[Mapping[str, Any]] = (),
    profile: Mapping[str, Any] | None = None,
) -> list[Figure]:
    """Draw the training curves (history: see `figures_run.read_history`), the time per stage and the step's profile.

    stages: mappings with stage (or name), seconds (wall) and coreSeconds. profile: `training.profile.Profile`,
    camelCase. What is empty is left out. Raises StorageError.
    """
    drawn = []
    if profile:
        drawn.append(draw_profile(folder, profile))
    if figures_run.read_history(history):
        caption = "Each panel is a quantity that the training recorded; long curves are smoothed, pale: as recorded."
        page = figures_run.training_curves(history)
        drawn.append(_save(folder, "training_curves", "Training curves", caption, page))
    if stages:
        caption = "Wall seconds are what a rented machine is paid for; core seconds add up all processes."
        drawn.append(_save(folder, "stage_times", "Time per stage", caption, figures_run.stage_times(stages)))
    return drawn


def draw_profile(folder: Path, profile: Mapping[str, Any]) -> Figure:
    """Draw where the time of a step goes (`training.profile.Profile`, camelCase). Raises StorageError."""
    caption = (
        f"From TensorFlow's profiler, {profile['steps']} steps of {profile['batch']} showers: an instant belongs to "
        "the operations that run then, in equal parts. " + profile["statement"]
    )
    page = figures_profile.step_profile(profile)
    return _save(folder, "step_profile", "Where the time of a training step goes", caption, page)


def _save(folder: Path, name: str, title: str, caption: str, page: AbstractContextManager[Page]) -> Figure:
    paths = {kind: folder / f"{name}.{kind}" for kind in ("png", "pdf")}
    with page as figure:
        figure.get_layout_engine().execute(figure)  # type: ignore[union-attr]
        figure.set_layout_engine("none")  # settled: it would be done again for each file
        for kind, path in paths.items():
            with atomic_writer(path) as temporary:
                # Files of the same numbers are the same: no time of day in them.
                metadata = {"CreationDate": datetime(2000, 1, 1, tzinfo=UTC)} if kind == "pdf" else {}
                figure.savefig(temporary, format=kind, dpi=DOTS_PER_INCH, metadata=metadata)
    return Figure(name=name, title=title, caption=caption, png=paths["png"], pdf=paths["pdf"])


def catalogue(evaluation: Evaluation, data: FigureData) -> list[Entry]:
    """All figures of a comparison, in the order of a report."""
    shapes, energy, showers = figures_shapes, figures_energy, figures_showers
    band = "Filled: Monte Carlo with its statistical band (hatched). Line: generator."
    return [
        Entry(
            "separations",
            "All observables at a glance",
            "Separation power from Monte Carlo of the generator, the untrained network and the mean training shower "
            "scaled by energy. Grey: the separation of two halves of the Monte Carlo (the floor). Tick: the floor "
            "scaled to the numbers of showers compared, where a perfect generator would lie.",
            energy.separations,
            any(r.separation is not None for r in evaluation.observables.values()),
        ),
        Entry(
            "longitudinal_profile",
            "Longitudinal profile",
            f"Mean energy per layer in ranges of primary energy. {band} Where the absorber gets thicker, the layers "
            "sample less. S is the separation of the profiles as histograms of unit sum.",
            shapes.longitudinal_profile,
            True,
        ),
        Entry(
            "transverse_profiles",
            "Transverse profiles",
            f"Mean energy per column (x) and row (y) of cells, all energies and angles. {band}",
            shapes.transverse_profiles,
            True,
        ),
        Entry(
            "cell_spectrum",
            "Cells",
            f"Left: cells per shower by energy, ten bins per decade; dotted: threshold of a hit. Right: part of the "
            f"cells above a threshold (one minus the sparsity). {band}",
            shapes.cell_spectrum,
            True,
        ),
        Entry(
            "response",
            "Response and linearity",
            "Left: mean ECAL sum with a straight line through each sample (least squares with variance proportional "
            "to E) and the deviation from its own line. Right: sum/E and its ratio to Monte Carlo.",
            energy.response,
            True,
        ),
        Entry(
            "resolution",
            "Energy resolution",
            "Standard deviation of sum/E over its mean, with bootstrap errors and a fit. The plain sum has a large "
            "constant term, because the thick layers at the back sample half; weights undo this.",
            energy.resolution,
            True,
        ),
        Entry(
            "shower_maximum",
            "Shower maximum",
            "Left: maximum of a gamma distribution fitted to the mean profile, along the normal of the face. Right: "
            "layer with the most energy, shower by shower.",
            energy.shower_maximum,
            True,
        ),
        Entry(
            "distributions",
            "Distributions",
            "One number per shower, all energies. What lies beyond an axis is in its outermost bin.",
            shapes.distributions,
            True,
        ),
        Entry(
            "moments",
            "Moments",
            "Moments 1 to 3 about the barycentre: along the depth, in x and in y.",
            shapes.moments,
            True,
        ),
        Entry(
            "measured_angle",
            "Measured angle",
            "The angle measured from the shower (mean over the layers of the angle between the barycentres) against "
            "the angle of the primary, and the distribution of the difference.",
            energy.measured_angle,
            True,
        ),
        Entry(
            "correlations",
            "Correlations",
            "Pearson correlations of moments, sum, energy, hits, longitudinal thirds and measured angle.",
            showers.correlations,
            bool(data.correlation_names),
        ),
        Entry(
            "classifier_and_regression",
            "Classifier and energy regression",
            "Left: boosted trees on per-shower observables tell generated from Monte Carlo showers (the diagonal: "
            "they cannot). Right: error of the energy by a linear regression that was trained on Monte Carlo.",
            energy.classifier_and_regression,
            evaluation.classifier.value is not None or data.regression is not None,
        ),
        Entry(
            "mean_showers",
            "Mean showers",
            "Mean showers from the side, summed over y, in ranges of the angle.",
            showers.mean_showers,
            bool(data.mean_showers),
        ),
        Entry(
            "example_showers",
            "Single showers",
            "Single Monte Carlo showers above the generated shower that is nearest in energy and angle; not selected.",
            showers.example_showers,
            bool(data.examples),
        ),
    ]
