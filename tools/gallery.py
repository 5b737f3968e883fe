"""The pictures of the site, with few colours: those of docs/gallery.md, whose text is written by hand, and of README.

`python -m tools.gallery accepted=runs/seed-1 plan=front.png` copies report, configuration and two figures of a run, or
one figure or page, into docs/gallery under the name before =. `python -m tools.gallery start=runs/latest` draws the
picture of README and of the site's first page, for light and for dark pages.
"""

import base64
import io
import re
import shutil
import sys
from pathlib import Path

from PIL import Image

from caloscale.physics import Evaluation
from caloscale.report.drawing import STYLE, own_style
from caloscale.report.figure_data import FIGURE_DATA_FILE, FigureData
from caloscale.report.shower_figures import shower_and_profile

DOCS = Path(__file__).resolve().parent.parent / "docs"
FOLDER = DOCS / "gallery"
FIGURES = ("longitudinal_profile", "resolution")
LIMIT_BYTES = 5_000_000


def reduced(image: Image.Image, columns: int = 900) -> bytes:
    """A PNG with at most 64 colours and so many columns."""
    small = image.convert("RGB")
    small.thumbnail((columns, columns))
    written = io.BytesIO()
    small.quantize(64).save(written, "PNG", optimize=True)
    return written.getvalue()


def copy_figure(source: Path, target: Path, columns: int = 900) -> None:
    """Copy a PNG with fewer colours."""
    target.write_bytes(reduced(Image.open(source), columns))


def copy_page(source: Path, target: Path) -> None:
    """Copy a page of a run; the PNG in it get fewer colours, and the folder of runs is named as such."""

    def smaller(found: re.Match[str]) -> str:
        image = Image.open(io.BytesIO(base64.b64decode(found[2])))
        return found[1] + base64.b64encode(reduced(image, 800)).decode()

    page = source.read_text(encoding="utf-8").replace(f"{source.resolve().parent.parent}/", "runs/")
    target.write_text(re.sub(r"(data:image/png;base64,)([A-Za-z0-9+/=]+)", smaller, page), encoding="utf-8")


def copy(source: Path, name: str) -> None:
    """Copy a run, a figure or a page into the gallery."""
    if source.is_dir():
        shutil.copyfile(source / "run.yaml", FOLDER / f"{name}.yaml")
        copy_page(source / "report.html", FOLDER / f"{name}.html")
        for figure in FIGURES:
            copy_figure(source / "figures" / f"{figure}.png", FOLDER / f"{name}-{figure}.png")
    else:
        (copy_figure if source.suffix == ".png" else copy_page)(source, FOLDER / f"{name}{source.suffix}")


def draw_start(folder: Path) -> None:
    """A Geant4 shower, a generated one and the profile with its ratio: docs/showers-light.png and showers-dark.png."""
    made = Evaluation.model_validate_json((folder / "validation" / "physics.json").read_bytes())
    data = FigureData.model_validate_json((folder / "validation" / FIGURE_DATA_FILE).read_bytes())
    for theme, (page, ink) in {"light": ("#ffffff", "#1f2328"), "dark": ("#0d1117", "#e6edf3")}.items():
        inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
        with own_style({**STYLE, "savefig.facecolor": page, "axes.facecolor": page, **dict.fromkeys(inked, ink)}):
            drawn = shower_and_profile(made, data).page
            for subfigure in (drawn, *drawn.subfigs):
                subfigure.set_facecolor(page)
            drawn.savefig(target := DOCS / f"showers-{theme}.png", dpi=130)
        copy_figure(target, target, 1092)


def main() -> None:
    """Write the pictures that were asked for."""
    for name, _, place in (argument.partition("=") for argument in sys.argv[1:]):
        if name == "start":
            draw_start(Path(place))
        else:
            copy(Path(place), name)
    if sum(file.stat().st_size for file in FOLDER.iterdir()) > LIMIT_BYTES:
        raise SystemExit("the gallery is larger than 5 MB")


if __name__ == "__main__":
    main()
