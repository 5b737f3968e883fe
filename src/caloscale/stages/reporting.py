"""The report, the summary and the bill of a run, from the records and results of its stages."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from caloscale import __version__
from caloscale.errors import InputError
from caloscale.physics import Evaluation
from caloscale.physics.result import ObservableSummary
from caloscale.physics.worth import Worth
from caloscale.planning.billing.bill import Bill
from caloscale.planning.catalogue.prices import load_prices
from caloscale.profiling.result import PROFILE_FILE, Profile
from caloscale.report.bill import bill_markdown, money_section, plan_section
from caloscale.report.blocks import Figure, Notice, Page, Section, Values
from caloscale.report.drawing import Drawing, save_figures
from caloscale.report.figure_data import FIGURE_DATA_FILE, FigureData
from caloscale.report.html import render
from caloscale.report.physics_sections import (
    FIGURES,
    PARAMETRISED,
    definitions_section,
    physics_section,
    verdict_section,
)
from caloscale.report.run import (
    StageSummary,
    profile_section,
    speed_section,
    step_profile,
    training_curves,
    training_section,
)
from caloscale.simulation.record import SimulationSummary
from caloscale.spec import AnyRun, Run, dump_run
from caloscale.spec.block import read_block, read_json
from caloscale.spec.workspace_layout import AMPLIFICATION_FILE, HISTORY, PHYSICS_FILE, USAGE_FILE
from caloscale.stages.planning import bill_of, rate_on, read_plan, read_use
from caloscale.stages.record import FAILURE, RESULT_FILES, StageRecord, finished, known_failure, recorded
from caloscale.stages.summary import DataSummary, GenerateSummary, PhysicsSummary, Summary, speeds
from caloscale.stages.usage import own_use
from caloscale.stages.workspace import open_workspace
from caloscale.storage.atomic import write_text
from caloscale.storage.failure import read_failure
from caloscale.training.record import TrainSummary

FOR_THE_BILL = "for caloscale bill, with --prices FILE"
"""What can be done about a missing price once the run is over."""
NOTHING_RAN = "no stage ran"


@dataclass(frozen=True)
class Report:
    """Summary, page and bill of a run."""

    summary: Summary
    html: str
    bill: str
    """The bill, Markdown."""

    @property
    def metrics(self) -> dict[str, float | str]:
        """Verdict, AUC, dollars and showers per second, as far as they are known."""
        summary = self.summary
        figures: dict[str, float | str | None] = {"verdict": "failed" if summary.outcome == "failed" else None}
        if summary.physics is not None:
            figures |= {"verdict": summary.physics.decision, "classifierAuc": summary.physics.classifier_auc}
        if summary.bill is not None:
            figures["usd"] = summary.bill.usd
        if summary.train is not None:
            figures["trainingShowersPerSecond"] = summary.train.showers_per_second
        if summary.generate is not None:
            figures["generatedShowersPerSecond"] = summary.generate.showers_per_second
        return {name: value for name, value in figures.items() if value is not None}


def report(run: Run, workspace: str | Path, *, failure: str | None = None) -> Report:
    """Write report.html, summary.json, bill.json and usage.json of a run, also of one that failed.

    failure: see `known_failure`. Where there is no price there is no bill, never one of zero: summary, page and
    bill.json state why.
    """
    if failure:
        failure = read_failure(str(workspace)) or failure
    with open_workspace(workspace, run, shared=True) as folder:
        failure = known_failure(folder, failure)
        with recorded("report", folder) as figures:
            figures[FAILURE] = failure
            keep_use(run, folder)
            result = _make(run, folder, failure)
            bill = bill_json(result.summary.bill or result.summary.no_price or "")
            for name, text in zip(RESULT_FILES, (result.summary.as_json(), bill, result.html)):
                write_text(folder / name, text)
        return result


def report_of_refusal(error: str, workspace: str | Path) -> Report:
    """The page of a run whose configuration was refused; nothing is written into the workspace."""
    name = str(workspace).rstrip("/").rpartition("/")[2]
    summary = Summary(run=name, outcome="failed", error=error, stages={}, bill=None, no_price=NOTHING_RAN)
    notices = _notices(summary, None, {})
    page = Page(title=f"run {name}", lead=_lead(summary, None), notices=notices, sections=(money_section(NOTHING_RAN),))
    return Report(summary, render(page), bill_markdown(NOTHING_RAN))


def keep_use(run: AnyRun, folder: Path) -> None:
    """Write usage.json from the records of the stages; usage of rented machines is kept as it is."""
    file = folder / USAGE_FILE
    if file.is_file() and not read_use(file).own_machine:
        return
    used = own_use(folder, run.budget.priced_as)
    if used is None:
        file.unlink(missing_ok=True)
    else:
        write_text(file, used.as_json())


def _make(run: Run, folder: Path, failure: str | None) -> Report:
    records, error = finished(folder)
    error = error or failure
    evaluation = _evaluation(folder, records)
    money = billed(folder)
    worth = _worth(folder, evaluation, money) if evaluation else None
    summary = _summarise(folder.name, error, records, evaluation, worth, money)
    profile_file, planned = folder / "training" / PROFILE_FILE, read_plan(folder)
    profile = None  # of a training that was too short for one
    if profile_file.is_file():
        profile = read_block(Profile, profile_file, remedy="delete it: the report then has no profile")
    figures = _draw(folder, evaluation, profile)

    def named(*names: str) -> list[Figure]:
        return [figure for figure in figures if figure.name in names]

    elsewhere = ("shower_and_profile", "training_curves", "step_profile")
    trained = summary.train.as_values() if summary.train else {}
    sections = [
        verdict_section(evaluation, worth, named("shower_and_profile")),
        physics_section(evaluation, [f for f in figures if f.name not in elsewhere]) if evaluation else None,
        training_section(named("training_curves"), trained),
        profile_section(profile, named("step_profile")) if profile else None,
        speed_section(speeds(summary), summary.stages),
        money_section(money),
        plan_section(planned, money if isinstance(money, Bill) else None) if planned else None,
        Section("Provenance", (Values(_provenance(run, records)),)),
        definitions_section() if evaluation else None,
    ]
    page = Page(
        title=f"{run.model.network} generator of {run.data.in_words} showers: run {folder.name}",
        lead=_lead(summary, evaluation),
        notices=_notices(summary, evaluation, records),
        sections=tuple(section for section in sections if section is not None),
    )
    return Report(summary, render(page), bill_markdown(money))


def _lead(summary: Summary, evaluation: Evaluation | None) -> str:
    parts = []
    if data := summary.data:
        parts.append(f"{data.showers:,} training showers ({data.source}), {data.validation_showers:,} held out.")
    if evaluation is not None:
        counts = evaluation.showers
        parts.append(
            f"{counts.generated:,} generated showers compared with {counts.reference:,} Monte Carlo showers "
            f"({evaluation.reference_source})."
        )
    return " ".join([*parts, f"caloscale {__version__}."])


def _notices(summary: Summary, evaluation: Evaluation | None, records: dict[str, StageRecord]) -> tuple[Notice, ...]:
    sources = {_figures_of(records, "simulate").get("source"), summary.data and summary.data.source}
    if evaluation is not None:
        sources |= {evaluation.reference_source, evaluation.training_source}
    notices = [PARAMETRISED] if "parametrised" in sources else []
    if summary.error:
        notices.append(Notice("This run failed. The report shows what is known.", failed=True, detail=summary.error))
    return tuple(notices)


def _draw(folder: Path, evaluation: Evaluation | None, profile: Profile | None) -> list[Figure]:
    """All figures of the report, in figures/; those that an earlier report had and this one has not are removed."""
    drawings: list[Callable[[], Drawing | None]] = []
    if evaluation is not None:
        file = folder / "validation" / FIGURE_DATA_FILE
        data = read_block(FigureData, file, remedy=_validate_again(folder))
        drawings += [partial(draw, evaluation, data) for draw in FIGURES]
    losses = folder / HISTORY
    if losses.is_file():
        drawings.append(partial(training_curves, read_json(losses, remedy="delete it: the report then has no losses")))
    if profile is not None:
        drawings.append(partial(step_profile, profile))
    figures = save_figures(folder / "figures", drawings) if drawings else []
    drawn = [figure.name for figure in figures]
    for name in (draw.__name__ for draw in (*FIGURES, training_curves, step_profile)):  # as its figure is called
        for kind in ("png", "pdf") if name not in drawn else ():
            (folder / "figures" / f"{name}.{kind}").unlink(missing_ok=True)
    return figures


def billed(folder: Path) -> Bill | str:
    """The bill of what the run used, compared with its plan, or why there is none."""
    if not (folder / USAGE_FILE).is_file():
        return NOTHING_RAN
    try:
        return bill_of(folder, load_prices(added=FOR_THE_BILL))
    except InputError as missing:
        return str(missing)


def _summarise(
    name: str,
    error: str | None,
    records: dict[str, StageRecord],
    evaluation: Evaluation | None,
    worth: Worth | None,
    money: Bill | str,
) -> Summary:
    trained, validated = _figures_of(records, "train"), _figures_of(records, "validate")
    # Where steps hit the cache of a pipeline and the workspace is new, the training knows what it was given.
    prepared = _figures_of(records, "preprocess") or trained.get("data", {})
    simulated = _figures_of(records, "simulate") or trained.get("simulation", {})
    return Summary(
        run=name,
        outcome="failed" if error else "succeeded",
        error=error,
        data=DataSummary.model_validate(prepared, extra="ignore") if prepared else None,
        simulation=SimulationSummary.model_validate(simulated, extra="ignore")
        if "showersPerSecond" in simulated
        else None,
        train=TrainSummary.model_validate(trained, extra="ignore") if trained else None,
        generate=_generation(records["validate"], simulated) if "showersPerSecond" in validated else None,
        physics=_physics(evaluation) if evaluation else None,
        amplification=worth,
        stages={
            stage: StageSummary(**record.values_of(*StageSummary.model_fields)) for stage, record in records.items()
        },
        bill=money if isinstance(money, Bill) else None,
        no_price=money if isinstance(money, str) else None,
    )


def _generation(validated: StageRecord, simulated: dict[str, Any]) -> GenerateSummary:
    rate, speedup = validated.figures["showersPerSecond"], None
    measured = simulated.get("showersPerSecond") and simulated.get("source") == "geant4"
    if measured and validated.machine.has_simulated(simulated):
        speedup = rate / rate_on(validated.machine.cores, simulated)
    return GenerateSummary(showers_per_second=rate, speedup_over_geant4=speedup)


def _physics(evaluation: Evaluation) -> PhysicsSummary:
    observables = {
        name: ObservableSummary(**result.values_of(*ObservableSummary.model_fields))
        for name, result in evaluation.observables.items()
    }
    decided = ("decision", "gates", "reasons", "dropped", "ungated", "warnings")
    return PhysicsSummary(
        **observables,
        classifier_auc=evaluation.classifier.value,
        linearity_deviation=evaluation.linearity.deviation.generated.value,
        resolution_deviation=evaluation.resolution.deviation.value,
        resolution_improvement_sigmas=evaluation.resolution.improvement_sigmas,
        shower_maximum_difference_layers=evaluation.largest_maximum_difference,
        classifier_showers=evaluation.classifier.showers,
        **evaluation.values_of(*decided),
    )


def _evaluation(folder: Path, records: dict[str, StageRecord]) -> Evaluation | None:
    """The result of the validation; None unless this attempt completed one."""
    validated = records.get("validate")
    if validated is None or validated.outcome != "succeeded":
        return None
    return read_block(Evaluation, folder / PHYSICS_FILE, remedy=_validate_again(folder))


def _worth(folder: Path, evaluation: Evaluation, money: Bill | str) -> Worth:
    """What generated showers are worth: by `caloscale amplification` where it came after the validation, else by the
    validation."""
    file = folder / AMPLIFICATION_FILE
    if not file.is_file():
        return evaluation.worth.of_runs((folder.name,), money.usd if isinstance(money, Bill) else None)
    return read_block(Worth, file, remedy=f"measure again: caloscale amplification {folder}, or delete it")


def _validate_again(folder: Path) -> str:
    return f"validate again: caloscale validate -w {folder}"


def _provenance(run: Run, records: dict[str, StageRecord]) -> dict[str, Any]:
    """What is needed to repeat the run."""
    prepared = _figures_of(records, "preprocess")
    machine = next((r.machine.as_values() for r in records.values()), None)
    return {
        "caloscale": __version__,
        "run configuration": dump_run(run),
        "machine": machine,
        "environment": {stage: r.environment for stage, r in records.items() if r.environment},
        "versions": _figures_of(records, "train").get("versions", {})
        | _figures_of(records, "simulate").get("versions", {}),
        "data": prepared.get("provenance", {}),
        "shards": prepared.get("shards", []),
        "dropped": prepared.get("dropped", {}),
    }


def bill_json(money: Bill | str) -> str:
    """The content of bill.json: the bill, or why there is none."""
    return json.dumps({"noPrice": money}) if isinstance(money, str) else money.as_json()


def _figures_of(records: dict[str, StageRecord], stage: str) -> dict[str, Any]:
    record = records.get(stage)
    return record.figures if record is not None and record.outcome == "succeeded" else {}
