"""The report, the summary and the bill of a run, from what its stages left."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from caloscale import __version__
from caloscale.errors import InputError
from caloscale.physics import Evaluation
from caloscale.planning.bill import Bill, bill
from caloscale.planning.cost import Cost, StageUse, price_run
from caloscale.planning.prices import load_prices
from caloscale.report import Figure, draw_run_figures, render_report
from caloscale.spec import Run, dump_run
from caloscale.spec.block import Block, read_block, read_json
from caloscale.spec.workspace_layout import USAGE_FILE
from caloscale.stages.plan_table import headline, markdown_table, remarks, verdict
from caloscale.stages.planning import NO_SPEED, read_plan, read_use, rented_speeds
from caloscale.stages.record import StageRecord, read_earlier, read_records, recorded
from caloscale.stages.summary import (
    DataSummary,
    GenerateSummary,
    ObservableSummary,
    PhysicsSummary,
    SimulationSummary,
    StageSummary,
    Summary,
    TrainSummary,
)
from caloscale.stages.usage import own_use
from caloscale.stages.workspace import keep_document, open_workspace
from caloscale.storage.atomic import atomic_writer

FOR_THE_BILL = "for caloscale bill, with --prices FILE"
"""What can be done about a missing price once the run is over."""


@dataclass(frozen=True)
class Report:
    """What a run is told by."""

    summary: Summary
    html: str
    bill: str
    """The bill, Markdown."""


def report(run: Run, workspace: str | Path, *, failure: str | None = None) -> Report:
    """Write report.html, summary.json, bill.json and usage.json of a run, also of one that failed.

    Where there is no price there is no bill, never one of zero: summary, page and bill.json say why.
    """
    with open_workspace(workspace) as folder:
        with recorded("report", folder):
            keep_document(run, folder)
            keep_use(run, folder, datetime.now(UTC).date())
            made = _make(run, folder, failure)
            for name, text in (
                ("summary.json", made.summary.model_dump_json(by_alias=True, indent=2)),
                ("bill.json", _bill_json(made.summary)),
                ("report.html", made.html),
            ):
                _write(folder / name, text)
        return made


def keep_use(run: Run, folder: Path, day: date) -> None:
    """Write usage.json from the records of the stages; what was written about rented machines stays."""
    file = folder / USAGE_FILE
    if file.is_file() and not read_use(file).own_machine:
        return
    records = [record for stage, record in read_records(folder).items() if stage != "report"]
    used = own_use(folder.name, day, run.budget.priced_as, records, read_earlier(folder))
    if used is None:
        file.unlink(missing_ok=True)
    else:
        _write(file, used.model_dump_json(by_alias=True, indent=2))


def _write(file: Path, text: str) -> None:
    with atomic_writer(file) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def _make(run: Run, folder: Path, failure: str | None) -> Report:
    records = {stage: record for stage, record in read_records(folder).items() if stage != "report"}
    failed = next((r for r in records.values() if r.outcome != "succeeded"), None)
    error = f"stage {failed.stage} {failed.outcome}: {failed.error}" if failed else failure
    evaluation = _evaluation(folder, records)
    billed = _billed(folder)
    rented = (folder / USAGE_FILE).is_file() and not read_use(folder).own_machine
    money = billed if rented and billed is not None else _price(run, folder, records)
    summary = _summarise(folder.name, error, records, evaluation, money)
    history, profile = _history(folder), _step_profile(folder)
    stages = [record.model_dump(mode="json", by_alias=True) for record in records.values()]
    html = render_report(
        title=f"{run.model.preset} generator: run {folder.name}",
        evaluation=evaluation,
        figures=_figures(folder, evaluation)
        + draw_run_figures(folder / "figures", history=history, stages=stages, profile=profile),
        provenance=_provenance(run, records),
        training=history,
        cost=summary.cost.model_dump(mode="json", by_alias=True) if summary.cost else None,
        no_price=summary.no_price,
        plan=_planned(folder, billed),
        rented=_rented(money) if rented else None,
        profile=profile,
        stages=stages,
        summary=summary.model_dump(mode="json", by_alias=True),
        failure=error,
    )
    return Report(summary, html, bill_markdown(summary))


def _bill_json(summary: Summary) -> str:
    money = summary.bill or summary.cost
    if money is None:
        return json.dumps({"noPrice": summary.no_price}, indent=2)
    return money.model_dump_json(by_alias=True, indent=2)


def _billed(folder: Path) -> Bill | str | None:
    """The bill of what the run used, beside its plan, or why it has no price; None where no stage ran."""
    if not (folder / USAGE_FILE).is_file():
        return None
    use, planned = read_use(folder), read_plan(folder)
    try:
        generation, monte_carlo = (None, None) if use.own_machine else rented_speeds(folder, use)
        prices = load_prices(added=FOR_THE_BILL)
        return bill(use, prices, plan=planned, generation=generation, monte_carlo=monte_carlo)
    except InputError as missing:
        return str(missing)


def _planned(folder: Path, billed: Bill | str | None) -> dict[str, Any] | None:
    """The plan beside the bill; None where nothing was planned."""
    made = read_plan(folder)
    if made is None:
        return None
    best = made.chosen or made.nearest
    return {
        "verdict": verdict(made),
        "headline": headline(made),
        "remarks": remarks(made),
        "best": best and best.model_dump(mode="json", by_alias=True),
        "bill": billed.model_dump(mode="json", by_alias=True) if isinstance(billed, Bill) else None,
    }


def _rented(money: Bill | Cost | str) -> dict[str, Any]:
    """The bill of the machines that the run held on a cluster, or why there is none."""
    if isinstance(money, str):
        return {"problem": money}
    return {**money.model_dump(mode="json", by_alias=True), "note": None if money.per_million_showers else NO_SPEED}


def _price(run: Run, folder: Path, records: dict[str, StageRecord]) -> Cost | str:
    """The stages with their prices, or why they have none."""
    every = [*(r for attempt in read_earlier(folder) for r in attempt.stages), *records.values()]
    used = [
        StageUse(
            name=stage,
            seconds=sum(r.seconds for r in every if r.stage == stage),
            core_seconds=sum(r.core_seconds for r in every if r.stage == stage),
        )
        for stage in dict.fromkeys(r.stage for r in every)
    ]
    simulated = _figures_of(records, "simulate").get("showersPerSecond") or None
    try:
        return price_run(
            used,
            run.budget.priced_as,
            load_prices(added=FOR_THE_BILL),
            datetime.now(UTC).date(),
            generated_per_second=_figures_of(records, "validate").get("showersPerSecond") or None,
            monte_carlo_per_second=simulated,
        )
    except InputError as missing:
        return str(missing)


def _summarise(
    name: str,
    error: str | None,
    records: dict[str, StageRecord],
    evaluation: Evaluation | None,
    money: Bill | Cost | str,
) -> Summary:
    prepared, simulated = _figures_of(records, "preprocess"), _figures_of(records, "simulate")
    trained, validated = _figures_of(records, "train"), _figures_of(records, "validate")
    return Summary(
        run=name,
        outcome="failed" if error else "succeeded",
        error=error,
        data=DataSummary(**_pick(DataSummary, prepared)) if prepared else None,
        simulation=SimulationSummary(**_pick(SimulationSummary, simulated))
        if "showersPerSecond" in simulated
        else None,
        train=TrainSummary(**_pick(TrainSummary, trained)) if trained else None,
        generate=_generation(validated, simulated) if "showersPerSecond" in validated else None,
        physics=_physics(evaluation) if evaluation else None,
        stages={
            stage: StageSummary(
                seconds=r.seconds, core_seconds=r.core_seconds, peak_memory_mib=r.peak_memory_mib, outcome=r.outcome
            )
            for stage, r in records.items()
        },
        cost=money if isinstance(money, Cost) else None,
        bill=money if isinstance(money, Bill) else None,
        no_price=money if isinstance(money, str) else None,
    )


def _generation(validated: dict[str, Any], simulated: dict[str, Any]) -> GenerateSummary:
    rate, monte_carlo = validated["showersPerSecond"], simulated.get("showersPerSecond")
    comparable = bool(monte_carlo) and simulated.get("source") == "geant4"
    return GenerateSummary(showers_per_second=rate, speedup_over_geant4=rate / monte_carlo if comparable else None)


def _physics(evaluation: Evaluation) -> PhysicsSummary:
    observables = {
        name: ObservableSummary(
            separation=result.separation,
            uncertainty=result.uncertainty,
            floor=result.floor,
            untrained=result.untrained,
            baseline=result.baseline,
            sigmas_better_than_baseline=result.sigmas_better_than_baseline,
        )
        for name, result in evaluation.observables.items()
    }
    return PhysicsSummary(
        **observables,
        classifier_auc=evaluation.classifier_auc,
        linearity_deviation=evaluation.linearity_deviation,
        resolution_deviation=evaluation.resolution.deviation.value,
        resolution_sigmas_better_than_baseline=evaluation.resolution.sigmas_better_than_baseline,
        shower_maximum_difference_layers=evaluation.largest_maximum_difference,
        released=evaluation.released,
    )


def _evaluation(folder: Path, records: dict[str, StageRecord]) -> Evaluation | None:
    """What the validation left, unless it is of an earlier attempt."""
    validated = records.get("validate")
    if validated is None or validated.outcome != "succeeded":
        return None
    file = folder / "validation" / "physics.json"
    return read_block(Evaluation, file, remedy=_validate_again(folder))


def _validate_again(folder: Path) -> str:
    return f"make it again: caloscale validate -w {folder}"


def _figures(folder: Path, evaluation: Evaluation | None) -> list[Figure]:
    if evaluation is None:
        return []
    listing = read_json(folder / "validation" / "figures.json", remedy=_validate_again(folder))
    root = folder / "figures"
    return [Figure(f["name"], f["title"], f["caption"], root / f["png"], root / f["pdf"]) for f in listing]


def _history(folder: Path) -> dict[str, Any]:
    path = folder / "training" / "history.json"
    return read_json(path, remedy="delete it: the report then has no losses") if path.is_file() else {}


def _step_profile(folder: Path) -> dict[str, Any] | None:
    """Where the time of a training step went; None for a training too short to be profiled."""
    path = folder / "training" / "profile.json"
    return read_json(path, remedy="delete it: the report then has no profile") if path.is_file() else None


def _provenance(run: Run, records: dict[str, StageRecord]) -> dict[str, Any]:
    """What somebody needs to make the same run again."""
    prepared = _figures_of(records, "preprocess")
    machine = next((r.machine.model_dump(mode="json", by_alias=True) for r in records.values()), None)
    return {
        "caloscale": __version__,
        "document": dump_run(run),
        "machine": machine,
        "versions": _figures_of(records, "train").get("versions", {})
        | _figures_of(records, "simulate").get("versions", {}),
        "data": prepared.get("provenance", {}),
        "shards": prepared.get("shards", []),
        "dropped": prepared.get("dropped", {}),
    }


def bill_markdown(summary: Summary) -> str:
    """The bill as a Markdown table, or why there is none."""
    cost = summary.cost
    if summary.bill is not None:
        return _rented_markdown(summary.bill)
    if cost is None:
        return f"There is no bill: {summary.no_price}\n"
    lines = ["| stage | wall s | core s | USD |", "|---|---:|---:|---:|"]
    lines += [f"| {s.name} | {s.seconds:.1f} | {s.core_seconds:.1f} | {s.usd:.4f} |" for s in cost.stages]
    total = sum(s.seconds for s in cost.stages)
    lines.append(f"| **all** | {total:.1f} | {sum(s.core_seconds for s in cost.stages):.1f} | **{cost.usd:.4f}** |")
    lines += [
        "",
        f"{cost.machine_type}, {cost.region}, {cost.purchase}: {cost.usd_per_hour:.4f} USD per hour, "
        f"prices seen on {cost.prices_observed_on}. {cost.note}",
        *(f"\n**{warning}**" for warning in cost.warnings),
    ]
    return "\n".join(lines) + "\n"


def _rented_markdown(made: Bill) -> str:
    rows = [
        (n.title, f"{n.region}, {n.purchase}", f"{n.node_hours:.4f}", f"{n.usd_per_node_hour:.4f}", f"{n.usd:.4f}")
        for n in made.nodes
    ]
    rows.append(("**all**", "", f"{sum(n.node_hours for n in made.nodes):.4f}", "", f"**{made.usd:.4f}**"))
    parts = [(part.meaning, f"{part.share:.1%}", f"{part.usd:.4f}") for part in made.parts if part.usd]
    lines = [
        markdown_table(("nodes", "region, purchase", "node hours", "USD/hour", "USD"), rows),
        markdown_table(("where the money went", "share", "USD"), parts),
        f"Prices of {made.as_of}, seen on {made.prices_observed_on}."
        + ("" if made.per_million_showers else f" {NO_SPEED}"),
        *(f"**{warning}**" for warning in made.warnings),
    ]
    return "\n\n".join(lines) + "\n"


def _figures_of(records: dict[str, StageRecord], stage: str) -> dict[str, Any]:
    record = records.get(stage)
    return record.figures if record is not None and record.outcome == "succeeded" else {}


def _pick(block: type[Block], figures: dict[str, Any]) -> dict[str, Any]:
    """The figures that a block has fields for."""
    names = {field.alias for field in block.model_fields.values()}
    return {name: value for name, value in figures.items() if name in names}
