"""The report of a run: one page that needs nothing beside itself."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import jinja2

from caloscale.physics.result import Compared, Distance, Evaluation, Measured
from caloscale.report import figures_profile, figures_run
from caloscale.report.figures import DOTS_PER_INCH, Figure
from caloscale.report.verdict import plain, signed, verdict_rows, why, with_uncertainty

RUN_FIGURES = ("training_curves", "stage_times", "step_profile")


@dataclass(frozen=True)
class Fact:
    """A number at a glance."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure as it stands in the page."""

    name: str
    title: str
    caption: str
    base64: str


def render_report(
    *,
    title: str,
    evaluation: Evaluation | None,
    figures: Sequence[Figure],
    provenance: Mapping[str, Any],
    training: Any,
    cost: Mapping[str, Any] | None,
    stages: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any] | None = None,
    failure: str | None = None,
    plan: Mapping[str, Any] | None = None,
    rented: Mapping[str, Any] | None = None,
    profile: Mapping[str, Any] | None = None,
    no_price: str | None = None,
) -> str:
    """The page of a run as HTML: images are inlined, nothing is loaded from elsewhere, all text is escaped.

    evaluation: absent when the run did not get that far; failure says why. figures: of the evaluation and of the run,
    in the order of the page; the training curves (``training``: the history of the training, see
    `figures_run.read_history`) and the times are drawn here when they are not among them. provenance: nested names
    and values. cost: the bill (camelCase, `planning.cost.Cost`); no_price: why there is none. stages: mappings with
    stage (or name), seconds, coreSeconds, outcome, error, peakMemoryMib. summary: summary.json, for the speeds.
    plan: what was planned, with ``verdict``, ``headline``, ``remarks``, ``best`` (`planning.plan.Candidate`, camelCase,
    or None) and ``bill`` (`planning.bill.Bill`, camelCase, or None). rented: the bill (the same) of machines that were
    held on a cluster, with ``note``, what it does not say, or ``problem``, why there is none. profile: of the training
    step (`training.profile.Profile`, camelCase). Raises OSError when a figure cannot be read.
    """
    summary = summary or {}
    rows = [dict(stage) | {"name": stage.get("name") or stage.get("stage")} for stage in stages]
    pictures = [_picture(figure) for figure in figures]
    pictures += _missing_pictures({p.name for p in pictures}, training, rows)
    return (
        _environment()
        .get_template("report.html")
        .render(
            title=title,
            failure=failure,
            evaluation=evaluation,
            why=why(evaluation) if evaluation else None,
            rows=verdict_rows(evaluation) if evaluation else [],
            facts=physics_facts(evaluation) if evaluation else [],
            distances=_distances(evaluation) if evaluation else [],
            ranges=_ranges(evaluation) if evaluation else [],
            parametrised=_is_parametrised(evaluation, summary, rows),
            pictures=[p for p in pictures if p.name not in RUN_FIGURES],
            run_pictures={p.name: p for p in pictures if p.name in RUN_FIGURES},
            speeds=_speeds(summary),
            summary=summary,
            stages=rows,
            cost=cost,
            plan=plan,
            rented=rented,
            no_price=no_price,
            profile=_profile(profile),
            provenance=provenance,
        )
    )


def _profile(profile: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What is said of the step: a sentence, speeds, a table."""
    if profile is None:
        return None
    columns, rows = figures_profile.profile_rows(profile)
    speed = (
        f"{profile['gflops']:.3g} GFLOP/s",
        f"{profile['gflopPerStep']:.3g} GFLOP in {profile['secondsPerStep']:.3g} s",
    )
    matrix = (
        f"{profile['matrixGflops']:.3g} GFLOP/s",
        f"in the {100 * profile['matrixShare']:.0f} % of the busy time that are convolutions and matrix products",
    )
    peak = f"{profile['peakGflops']:.3g} GFLOP/s", f"a large matrix product in {profile['precision']}, measured"
    facts = [
        Fact("achieved by the step", *speed),
        Fact("within its products", *matrix),
        Fact("the machine's peak", *peak),
    ]
    return {"statement": profile["statement"], "columns": columns, "rows": rows, "facts": facts}


def physics_facts(evaluation: Evaluation) -> list[Fact]:
    """What a physicist asks first."""
    facts = []
    layers = evaluation.largest_maximum_difference
    if layers is not None:
        fitted = [m.fitted_difference_layers for m in evaluation.shower_maximum]
        detail = "in the ranges of energy: " + "; ".join(with_uncertainty(f.value, f.uncertainty) for f in fitted)
        facts.append(Fact("fitted shower maximum, off by at most", f"{layers:.2f} layers", detail))
    deviation = evaluation.linearity.deviation
    if deviation.generated.value is not None:
        detail = f"Monte Carlo {_percent(deviation.reference)}"
        facts.append(Fact("linearity, off a straight line by", _percent(deviation.generated), detail))
    ratios = [r.ratio.value for r in evaluation.response if r.ratio.value is not None]
    if ratios:
        facts.append(
            Fact("response over Monte Carlo", f"{min(ratios):.3f} to {max(ratios):.3f}", "in the energy ranges")
        )
    resolution = evaluation.resolution
    if resolution.deviation.value is not None:
        detail = f"better than the mean shower by {signed(resolution.sigmas_better_than_baseline)}"
        facts.append(Fact("sigma/E off Monte Carlo by", _percent(resolution.deviation), detail))
    spectrum = evaluation.observables["cellSpectrum"]
    if spectrum.sigmas_better_than_baseline is not None:
        detail = "against the mean shower scaled by energy"
        facts.append(Fact("cell spectrum better by", signed(spectrum.sigmas_better_than_baseline), detail))
    if evaluation.classifier.value is not None:
        found = evaluation.classifier
        detail = f"mean shower {plain(found.baseline)}; 0.5: cannot be told from Monte Carlo"
        facts.append(Fact("classifier AUC", with_uncertainty(found.value, found.uncertainty), detail))
    return facts


def _percent(measured: Measured) -> str:
    if measured.value is None:
        return "absent"
    scaled = None if measured.uncertainty is None else 100 * measured.uncertainty
    return f"{with_uncertainty(100 * measured.value, scaled)} %"


def _distances(evaluation: Evaluation) -> list[dict[str, str]]:
    named: list[tuple[str, Distance]] = [
        ("Classifier AUC", evaluation.classifier),
        ("FPD", evaluation.fpd),
        ("KPD", evaluation.kpd),
    ]
    return [
        {
            "title": title,
            "value": with_uncertainty(distance.value, distance.uncertainty),
            "floor": with_uncertainty(distance.floor, distance.floor_uncertainty),
            "untrained": plain(distance.untrained),
            "baseline": plain(distance.baseline),
            "reason": distance.reason or "",
        }
        for title, distance in named
    ]


def _ranges(evaluation: Evaluation) -> list[dict[str, tuple[str, str]]]:
    """Two lines for each range of energy: Monte Carlo and generator."""
    rows = []
    for k, energy in enumerate(evaluation.energy_ranges):
        maximum, response = evaluation.shower_maximum[k], evaluation.response[k]
        plain_sum, weighted = evaluation.resolution.ranges[k], evaluation.weighted_resolution.ranges[k]
        rows.append(
            {
                "energy": (energy.label, ""),
                "sample": ("Monte Carlo", "generator"),
                "showers": (str(energy.reference), str(energy.generated)),
                "layer": (plain(maximum.layer.reference.value), plain(maximum.layer.generated.value)),
                "depth": _pair(maximum.depth_x0),
                "response": _pair(response.mev_per_gev),
                "ratio": ("", with_uncertainty(response.ratio.value, response.ratio.uncertainty)),
                "sigma": _pair(plain_sum.sigma, 100),
                "weighted": _pair(weighted.sigma, 100),
            }
        )
    return rows


def _pair(compared: Compared, scale: float = 1) -> tuple[str, str]:
    texts = []
    for one in (compared.reference, compared.generated):
        value = None if one.value is None else scale * one.value
        texts.append(with_uncertainty(value, None if one.uncertainty is None else scale * one.uncertainty))
    return texts[0], texts[1]


def _speeds(summary: Mapping[str, Any]) -> list[Fact]:
    """The measured speeds of the summary."""
    facts = []
    simulation, train, generate = (summary.get(name) or {} for name in ("simulation", "train", "generate"))
    if simulation.get("showersPerSecond"):
        cores = simulation.get("coreSecondsPerShower")
        detail = f"{cores:.3g} core seconds per shower" if cores else ""
        facts.append(Fact("simulation", f"{simulation['showersPerSecond']:.3g} showers/s", detail))
    if train.get("showersPerSecond"):
        detail = f"{train.get('steps', '?')} steps, {train.get('epochs', '?')} epochs"
        facts.append(Fact("training", f"{train['showersPerSecond']:.3g} showers/s", detail))
    if generate.get("showersPerSecond"):
        facts.append(Fact("generation", f"{generate['showersPerSecond']:.4g} showers/s"))
    if generate.get("speedupOverGeant4"):
        detail = "generated over simulated showers per second, this machine"
        facts.append(Fact("speed-up over Geant4", f"{generate['speedupOverGeant4']:.3g} times", detail))
    return facts


def _is_parametrised(
    evaluation: Evaluation | None, summary: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]
) -> bool:
    sources = {(summary.get("data") or {}).get("source")}
    sources |= {(stage.get("figures") or {}).get("source") for stage in stages}
    if evaluation is not None:
        sources |= {evaluation.reference_source, evaluation.training_source}
    return "parametrised" in sources


def _picture(figure: Figure) -> Picture:
    data = base64.b64encode(figure.png.read_bytes()).decode("ascii")
    return Picture(figure.name, figure.title, figure.caption, data)


def _missing_pictures(present: set[str], training: Any, stages: Sequence[Mapping[str, Any]]) -> list[Picture]:
    """Training curves and times of the stages that were not drawn before."""
    made = []
    if "training_curves" not in present and figures_run.read_history(training):
        made.append(_inline("training_curves", "Training curves", figures_run.training_curves(training)))
    if "stage_times" not in present and stages:
        made.append(_inline("stage_times", "Time per stage", figures_run.stage_times(stages)))
    return made


def _inline(name: str, title: str, page: Any) -> Picture:
    buffer = BytesIO()
    with page as figure:
        figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
    return Picture(name, title, "", base64.b64encode(buffer.getvalue()).decode("ascii"))


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["words"] = figures_run.words
    environment.filters["plain"] = lambda value: f"{value:.4g}" if isinstance(value, float) else str(value)
    environment.tests["listing"] = lambda value: isinstance(value, list | tuple)
    return environment
