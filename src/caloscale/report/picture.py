"""A picture of one shower."""

from pathlib import Path

import numpy as np

from caloscale.errors import InputError
from caloscale.showers.arrays import Showers

_DECADES = 5
"""Energies more than this many powers of ten below the highest have one colour."""
_ORIGIN = {"geant4": "Geant4", "parametrised": "parametrised", "generated": "generated", "file": "origin unknown"}


def draw_shower(
    showers: Showers, path: str | Path, *, axes: tuple[str, str, str] = ("cell in x", "cell in y", "layer")
) -> None:
    """Draw three projections of the first shower as PNG, each summed along an axis, with one logarithmic scale.

    The suffix of ``path`` may also be .pdf or .svg. Raises InputError when one of its cells is not finite, StorageError
    when the file cannot be written.
    """
    from matplotlib.colors import LogNorm

    from caloscale.report.drawing import figure_writer, new_page, own_style

    cells = np.asarray(showers.cells_gev[0], np.float64)
    if not np.isfinite(cells).all():
        raise InputError("has cells that are not finite", field="shower", remedy="choose another shower")
    side_x, side_y, front = cells.sum(axis=1), cells.sum(axis=0), cells.sum(axis=2).T
    views = [
        ("from the side", side_x, axes[2], axes[0]),
        ("from above", side_y, axes[2], axes[1]),
        ("from the front", front, axes[0], axes[1]),
    ]
    highest = max(view.max() for _, view, _, _ in views) or 1.0
    norm = LogNorm(highest / 10**_DECADES, highest)

    with own_style({}):
        figure = new_page(12, 4.4)
        panels = figure.subplots(1, 3)
        for panel, (name, view, horizontal, vertical) in zip(panels, views):
            rows, columns = view.shape
            edges = np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5
            shown = np.ma.masked_less_equal(view, 0)
            picture = panel.pcolormesh(*edges, shown, norm=norm, cmap="viridis", rasterized=True)
            panel.set(title=name, xlabel=horizontal, ylabel=vertical, box_aspect=1)
        figure.colorbar(picture, ax=panels, label="energy along the line of sight [GeV]", pad=0.01)
        figure.suptitle(_title(showers), fontsize="x-large")
        with figure_writer(path) as file:
            figure.savefig(file, dpi=150, format=Path(path).suffix[1:])


def _title(showers: Showers) -> str:
    energy_gev, angle_deg, cells = showers.energy_gev[0], np.degrees(showers.angle_rad[0]), showers.cells_gev[0]
    total_gev, hits = cells.sum(dtype=np.float64), np.count_nonzero(cells)
    visible = f"{total_gev:.2f} GeV" if total_gev >= 1 else f"{1000 * total_gev:.3g} MeV"
    origin = _ORIGIN.get(showers.source, showers.source)
    return f"{energy_gev:.1f} GeV at {angle_deg:.1f}° ({origin}): {visible} deposited in {hits} cells"
