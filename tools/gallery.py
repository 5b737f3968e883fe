"""The gallery of the site: runs that were made before, a plan and a study, each with configuration, figures and bill.

`python -m tools.gallery accepted=runs/seed-1 rejected=runs/one-epoch` writes docs/gallery.md and docs/gallery/.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from caloscale.planning.catalogue.measurements import load_measurements
from caloscale.planning.catalogue.prices import load_prices
from caloscale.planning.search.plan import plan
from caloscale.report.plan import draw_plan, verdict
from caloscale.spec import load_run
from tools.site import table

ROOT = Path(__file__).resolve().parent.parent
PAGE, FOLDER = ROOT / "docs" / "gallery.md", ROOT / "docs" / "gallery"
FIGURES = {"longitudinal_profile": "Longitudinal profile", "resolution": "Energy resolution"}
DAY = dt.date(2026, 11, 21)
PLAN = ("train.batchPerReplica=96", "hardware.accelerator=nvidia-tesla-v100", "hardware.region=europe-west4")
LIMIT_BYTES = 5_000_000
HEAD = """# Gallery

Runs of the preset `compact` on two cores, each with its run configuration, figures and bill, and a plan. `python -m
tools.gallery` writes this page from folders of runs. [Physics](physics.md#operating-characteristics) states how many of
ten seeds were accepted, and [Studies](studies.md#cost) has a study of cost.

![Report of make run](report.png)
"""


def copy_figure(source: Path, target: Path) -> None:
    """Copy a PNG with at most 64 colours and 900 columns."""
    image = Image.open(source).convert("RGB")
    image.thumbnail((900, 900))
    image.quantize(64).save(target, optimize=True)


def run_section(title: str, folder: Path) -> Iterator[str]:
    """A run: decision, gates, figures, numbers and bill."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    physics, bill, trained = summary["physics"], summary["bill"], summary["train"]
    (FOLDER / f"{title}.yaml").write_text((folder / "run.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    yield f"## A model that is {physics['decision']}"
    hours = ", ".join(f"{node['nodeHours']:.3f} h of {node['title']}" for node in bill["nodes"])
    epochs = f"{trained['epochs']:g} epoch{'' if trained['epochs'] == 1 else 's'}"
    yield (
        f"{epochs} of {summary['data']['showers']:,} showers in {trained['seconds']:.0f} s, "
        f"[run configuration](gallery/{title}.yaml). "
        f"Bill: {bill['usd']:.4f} USD at the prices of {bill['asOf']} ({hours})."
    )
    yield "\n".join(f"- {reason}" for reason in physics["reasons"]) or "All gates are met."
    gates = (
        (
            gate["title"],
            f"{gate['value']:.3g} {gate['unit']}".strip(),
            f"{gate['tolerance']:g}",
            gate["decision"],
        )
        for gate in physics["gates"]
        if gate["value"] is not None
    )
    yield table(("gate", "difference", "tolerance", "decision"), gates)
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


def main() -> None:
    """Write the page and its pictures."""
    FOLDER.mkdir(exist_ok=True)
    blocks = [HEAD.strip()]
    for title, _, folder in (argument.partition("=") for argument in sys.argv[1:]):
        blocks += run_section(title, Path(folder))
    blocks += plan_section()
    PAGE.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    size = sum(file.stat().st_size for file in FOLDER.iterdir())
    print(f"{PAGE.relative_to(ROOT)}: {size / 1e6:.1f} MB of pictures and configurations")
    if size > LIMIT_BYTES:
        raise SystemExit("the gallery is larger than 5 MB")


if __name__ == "__main__":
    main()
