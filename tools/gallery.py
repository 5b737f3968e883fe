"""The gallery of the site: runs that were made before, a plan and a study, each with configuration, report and bill.

`python -m tools.gallery accepted=runs/seed-1 rejected=runs/one-epoch` writes docs/gallery.md and docs/gallery/. The
name before = is one of `HEADINGS`. `python -m tools.gallery start=runs/latest` draws the picture of README and of the
site's first page alone, for light and for dark pages.
"""

import base64
import datetime as dt
import io
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from caloscale.physics import Evaluation
from caloscale.planning.catalogue.measurements import load_measurements
from caloscale.planning.catalogue.prices import load_prices
from caloscale.planning.search.plan import plan
from caloscale.report.drawing import STYLE, own_style
from caloscale.report.figure_data import FIGURE_DATA_FILE, FigureData
from caloscale.report.plan import draw_plan, verdict
from caloscale.report.shower_figures import shower_and_profile
from caloscale.spec import load_run

ROOT = Path(__file__).resolve().parent.parent
PAGE, FOLDER = ROOT / "docs" / "gallery.md", ROOT / "docs" / "gallery"
FIGURES = {"longitudinal_profile": "Longitudinal profile", "resolution": "Energy resolution"}
HEADINGS = {
    "accepted": "A model that is accepted",
    "undecided": "A model that is undecided",
    "rejected": "A model that is rejected",
    "fixed-angle": "The fixed-angle network",
    "variable-angle": "The variable-angle network, trained on one NVIDIA H200",
    "flow-51x51x25": "51 x 51 x 25 cells, 100 to 200 GeV, by the family flow",
}
REASONS = 3
"""Reasons of a verdict that are listed."""
STUDY = "cluster-configuration"
LINK = "[its question and what was published](studies.md#scaling-cluster-configuration-preemption-providers)"
DAY = dt.date(2026, 11, 21)
PLAN = ("train.batchPerReplica=96", "hardware.accelerator=nvidia-tesla-v100", "hardware.region=europe-west4")
LIMIT_BYTES = 5_000_000
HEAD = """# Gallery

Runs on two cores except for one, each with its run configuration, report with all gates, figures and bill; a plan;
and a study. The variable-angle run was trained on one NVIDIA H200 by `tools/accelerator.py` of commit 81a33e4 and
validated on two cores; its bill counts both at the price of an H100 machine.
`python -m tools.gallery` writes this page from folders of runs. [How often a verdict is wrong](verdicts.md) has what
the gates decide on good and on bad generators.

![Report of a run of the preset compact](report.png)
"""


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


def run_section(title: str, folder: Path) -> Iterator[str]:
    """A run: decision with its reasons, bill and figures; the report has each gate."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    physics, bill, trained = summary["physics"], summary["bill"], summary["train"]
    (FOLDER / f"{title}.yaml").write_text((folder / "run.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    copy_page(folder / "report.html", FOLDER / f"{title}.html")
    yield f"## {HEADINGS[title]}"
    hours = ", ".join(f"{node['nodeHours']:.3f} h of {node['title']}" for node in bill["nodes"])
    epochs = f"{trained['epochs']:g} epoch{'' if trained['epochs'] == 1 else 's'}"
    yield (
        f"{epochs} of {summary['data']['showers']:,} showers in {trained['seconds']:.0f} s, "
        f"[run configuration](gallery/{title}.yaml), [report](gallery/{title}.html); {physics['decision']}. "
        f"Bill: {bill['usd']:.4f} USD at the prices of {bill['asOf']} ({hours})."
    )
    shown, others = physics["reasons"][:REASONS], physics["reasons"][REASONS:]
    lines = [*shown, *([f"and {len(others)} further gates, in the report"] if others else [])]
    yield "\n".join(f"- {line}" for line in lines) or "All gates are met."
    for name, alt in FIGURES.items():
        copy_figure(folder / "figures" / f"{name}.png", FOLDER / f"{title}-{name}.png")
        yield f"![{alt}](gallery/{title}-{name}.png)"


def plan_section() -> Iterator[str]:
    """The Pareto front of a plan."""
    made = plan(load_run(preset="variable-angle", overrides=PLAN), load_prices(), load_measurements(), DAY)
    with tempfile.TemporaryDirectory() as folder:
        draw_plan(made, Path(folder) / "plan.png")
        copy_figure(Path(folder) / "plan.png", FOLDER / "plan.png")
    sets = " ".join(f"--set {one}" for one in PLAN)
    yield "## A plan"
    yield f"```bash\ncaloscale plan --preset variable-angle {sets} --as-of {DAY} --figure front.png\n```"
    yield f"{verdict(made)}."
    yield "![Money against time](gallery/plan.png)"


def study_section() -> Iterator[str]:
    """A study of modelled times."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "caloscale.cli.main", "study", STUDY]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        made = Path(folder, "runs", f"study-{STUDY}")
        copy_page(made / "study.html", FOLDER / "study.html")
        (figure,) = made.glob("*.png")
        copy_figure(figure, FOLDER / "study.png")
    yield "## A study"
    yield f"```bash\ncaloscale study {STUDY}\n```"
    yield f"How 32 GPUs are best divided into nodes and workers, modelled: [report](gallery/study.html), and {LINK}."
    yield "![Time of an epoch by nodes and workers](gallery/study.png)"


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
            drawn.savefig(target := ROOT / "docs" / f"showers-{theme}.png", dpi=130)
        copy_figure(target, target, 1092)


def main() -> None:
    """Write the page and its pictures."""
    if len(sys.argv) == 2 and sys.argv[1].startswith("start="):
        draw_start(Path(sys.argv[1].removeprefix("start=")))
        return
    FOLDER.mkdir(exist_ok=True)
    blocks = [HEAD.strip()]
    for title, _, folder in (argument.partition("=") for argument in sys.argv[1:]):
        blocks += run_section(title, Path(folder))
    blocks += plan_section()
    blocks += study_section()
    PAGE.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    size = sum(file.stat().st_size for file in FOLDER.iterdir())
    print(f"{PAGE.relative_to(ROOT)}: {size / 1e6:.1f} MB of pictures and configurations")
    if size > LIMIT_BYTES:
        raise SystemExit("the gallery is larger than 5 MB")


if __name__ == "__main__":
    main()
