"""How figures look and are saved: one style, one colour per sample, histograms with a ratio. No pyplot state."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure as Page
from matplotlib.ticker import MaxNLocator

from caloscale.detector.axes import Floats
from caloscale.progress import bar
from caloscale.report.blocks import Figure
from caloscale.report.figure_data import Curve, Panel
from caloscale.report.html import DOTS_PER_INCH
from caloscale.storage.atomic import atomic_writer

_STYLE_FILE = Path(__file__).with_name("figures.mplstyle")
STYLE = dict[str, Any](matplotlib.rc_params_from_file(_STYLE_FILE, use_default_template=False).items())
MONTE_CARLO, MONTE_CARLO_EDGE = "#c3ccd6", "#4a5866"
GENERATED, BASELINE, UNTRAINED = "#c8322b", "#1c7a5f", "#7b5aa6"
COLOURS = {"reference": MONTE_CARLO_EDGE, "generated": GENERATED, "baseline": BASELINE, "untrained": UNTRAINED}
DASHES: dict[str, Any] = {"generated": "-", "baseline": (0, (5, 2)), "untrained": (0, (1, 1.5))}
LEGEND_HEADROOM = 1.3
TEXT_BOX = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5}


@dataclass(frozen=True)
class Drawing:
    """A drawn figure. alternative: what is seen in it, in words."""

    name: str
    title: str
    caption: str
    alternative: str
    page: Page


def new_page(width: float, height: float) -> Page:
    """An empty page, inches; drawn with Agg, without a window system."""
    figure = Page(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def new_panels(count: int, columns: int, width: float, height: float, **options: Any) -> tuple[Page, Sequence[Axes]]:
    """A page with so many panels of width x height, inches, in rows of ``columns``; options: of `subplots`."""
    columns = min(columns, count)
    rows = -(-count // columns)
    page = new_page(width * columns, height * rows + 0.4)
    axes = page.subplots(rows, columns, squeeze=False, **options)
    for ax in axes.flat[count:]:
        ax.set_axis_off()
    return page, list(axes.flat[:count])


@contextmanager
def own_style(style: Mapping[str, Any] = STYLE) -> Iterator[None]:
    """Matplotlib's defaults and a style, whatever a matplotlibrc of the user or of the working directory sets."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(style)  # type: ignore[arg-type]
        yield


def save_figures(folder: Path, draw: Sequence[Callable[[], Drawing | None]]) -> list[Figure]:
    """Draw figures one after the other in the style of the report, each as <name>.png and <name>.pdf in a folder.

    A function that returns None has nothing to draw. Raises StorageError.
    """
    saved = []
    with own_style(), bar("figures", len(draw), "figures") as progress:
        for one in draw:
            drawing = one()
            if drawing is not None:
                saved.append(_save(folder, drawing))
            progress.update(1)
    return saved


@contextmanager
def figure_writer(path: str | Path) -> Iterator[BytesIO]:
    """A file in memory, which becomes ``path``: of a PDF that does not fit on the disk Matplotlib raises no OSError."""
    content = BytesIO()
    yield content
    with atomic_writer(path) as temporary:
        temporary.write_bytes(content.getvalue())


def _save(folder: Path, drawing: Drawing) -> Figure:
    """Write the files. Not with `savefig`: it draws a page with a layout engine twice for each file."""
    png, pdf = (folder / f"{drawing.name}.{kind}" for kind in ("png", "pdf"))
    page = drawing.page
    page.set_dpi(DOTS_PER_INCH)
    page.get_layout_engine().execute(page)  # type: ignore[union-attr]
    page.set_layout_engine("none")
    with figure_writer(png) as file:
        FigureCanvasAgg(page).print_png(file)  # type: ignore[no-untyped-call]
    with figure_writer(pdf) as file:
        # Files of the same numbers are the same: no time of day in them.
        metadata = {"CreationDate": datetime(2000, 1, 1, tzinfo=UTC)}
        FigureCanvasPdf(page).print_pdf(file, metadata=metadata)  # type: ignore[no-untyped-call]
    return Figure(drawing.name, drawing.title, drawing.caption, drawing.alternative, png)


def sample_names(reference_source: str) -> dict[str, str]:
    """What the samples are called in legends."""
    monte_carlo = {"geant4": "Geant4", "parametrised": "Parametrised MC"}.get(reference_source, "Monte Carlo")
    return {
        "reference": monte_carlo,
        "generated": "Generator",
        "baseline": "Mean shower × E",  # noqa: RUF001
        "untrained": "Untrained network",
    }


def draw_histogram(ax: Axes, panel: Panel, names: dict[str, str], samples: Sequence[str]) -> None:
    """Monte Carlo filled with its band, the other samples as lines, the generator with error bars."""
    import mplhep  # imports pyplot, which a report without histograms has no need of

    edges = panel.edges
    for sample in ("reference", *samples):
        curve = panel.curves.get(sample)
        if curve is None or not np.isfinite(curve.values).any():
            continue
        is_generated = sample == "generated"
        look: dict[str, Any] = {"histtype": "fill", "color": MONTE_CARLO, "zorder": 1}
        if sample == "reference":
            draw_band(ax, edges, curve.values, curve.errors)
        else:
            look = {"histtype": "step", "edges": False, "color": COLOURS[sample], "linestyle": DASHES[sample]}
            look |= {"linewidth": 1.8 if is_generated else 1.4, "zorder": 4 if is_generated else 3}
        yerr = curve.errors if is_generated else False
        mplhep.histplot(curve.values, bins=edges, ax=ax, label=names[sample], yerr=yerr, **look)
    ax.set_xlim(edges[0], edges[-1])


def draw_band(ax: Axes, edges: Floats, values: Floats, errors: Floats) -> None:
    """The statistical uncertainty of Monte Carlo, hatched."""
    ax.stairs(
        values + errors,
        edges,
        baseline=values - errors,
        fill=True,
        facecolor="none",
        edgecolor=MONTE_CARLO_EDGE,
        hatch="//////",
        linewidth=0,
        zorder=2,
    )


def draw_ratio(ax: Axes, panel: Panel) -> None:
    """Generated over Monte Carlo with the band of Monte Carlo; triangles point at what lies beyond the axis."""
    edges, reference, curve = panel.edges, panel.curves["reference"], panel.curves["generated"]
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(reference.values > 0, reference.errors / reference.values, 0.0 * reference.values)
        base = np.where(reference.values > 0, reference.values, np.nan)
    draw_band(ax, edges, np.ones_like(base), np.minimum(relative, 10))
    ax.axhline(1, color=MONTE_CARLO_EDGE, linewidth=0.9)
    x = np.sqrt(edges[1:] * edges[:-1]) if ax.get_xscale() == "log" else (edges[1:] + edges[:-1]) / 2
    values, errors = curve.values / base, curve.errors / base
    seen = np.abs(values[np.isfinite(values)] - 1)
    half = float(np.clip(1.25 * np.quantile(seen, 0.85) if len(seen) else 0.5, 0.15, 0.9))
    low, high, edge = 1 - half, 1 + half, 0.06 * half
    inside = (values >= low) & (values <= high)
    ax.errorbar(x[inside], values[inside], yerr=errors[inside], fmt="o", markersize=3.5, color=GENERATED, linewidth=1.2)
    for beyond, y, marker in ((values > high, high - edge, "^"), (values < low, low + edge, "v")):
        ax.plot(x[beyond], np.full(int(beyond.sum()), y), marker, color=GENERATED, markersize=5, fillstyle="none")
    ax.set(ylabel="ratio", xlim=(edges[0], edges[-1]), ylim=(low, high))
    ax.yaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 2.5, 5, 10]))


def draw_points(ax: Axes, curve: Curve | None, sample: str, label: str, *, line: bool = False) -> None:
    """Points with errors at the sample's own positions; open squares for Monte Carlo, dots for the generator."""
    if curve is None:
        return
    ax.errorbar(
        curve.x,
        curve.values,
        yerr=curve.errors,
        fmt={"reference": "s", "generated": "o"}.get(sample, "d"),
        markersize=6 if sample == "reference" else 5,
        markerfacecolor="white" if sample == "reference" else COLOURS[sample],
        color=COLOURS[sample],
        linestyle="-" if line else "none",
        linewidth=1.4,
        label=label,
        zorder=3 if sample == "reference" else 4,
    )


def set_top(ax: Axes, panel: Panel, samples: Sequence[str], headroom: float = LEGEND_HEADROOM) -> None:
    """A linear axis from zero to above the largest value of the samples."""
    values = [panel.curves[s].values for s in samples if s in panel.curves]
    top = max((float(np.nanmax(v)) for v in values if np.isfinite(v).any()), default=1.0)
    ax.set_ylim(0, headroom * top if top > 0 else 1)


def set_log(ax: Axes, panel: Panel) -> None:
    """A logarithmic axis over the values of Monte Carlo, at most five decades."""
    values = panel.curves["reference"].values
    filled = values[values > 0]
    top = float(filled.max()) if len(filled) else 1.0
    bottom = max(float(filled.min()) / 3, top / 10**5) if len(filled) else 1e-3
    ax.set_yscale("log")
    ax.set_ylim(bottom, top * 8)


def note(ax: Axes, text: str) -> None:
    """A small text in the corner of a panel."""
    look: dict[str, Any] = {"fontsize": 11, "linespacing": 1.35, "bbox": TEXT_BOX, "zorder": 9}
    ax.text(0.97, 0.95, text, transform=ax.transAxes, ha="right", va="top", **look)


def legend_above(figure: Page, ax: Axes) -> None:
    """One legend for all panels, above them, with the generator first."""
    handles, labels = ax.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda k: labels[k] != "Generator")
    figure.legend([handles[k] for k in order], [labels[k] for k in order], loc="outside upper center", ncols=4)


def hide_labels(ax: Axes) -> None:
    """No numbers below a panel that shares its axis with the ratio below it."""
    ax.tick_params(labelbottom=False)
    ax.set_xlabel("")
