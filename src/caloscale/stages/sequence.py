"""All stages of a run, one after the other, and what a person sees at the end."""

import re
import secrets
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from caloscale import stages
from caloscale.errors import CaloscaleError, ConfigurationError
from caloscale.physics.worth import Worth
from caloscale.report.physics_sections import worth_text
from caloscale.showers.sources import find_files
from caloscale.spec import Run
from caloscale.spec.block import read_block
from caloscale.spec.workspace_layout import DATASET, TRAINED
from caloscale.stages.planning import plan_of
from caloscale.stages.record import read_records
from caloscale.stages.summary import PhysicsSummary, Summary, speeds
from caloscale.stages.training import check_start, check_training
from caloscale.stages.workspace import hold, keep_configuration, named
from caloscale.storage.atomic import make_folder, storage_error
from caloscale.storage.objects import is_remote


def new_run_folder(run: Run, runs: Path, name: str | None = None) -> Path:
    """Make ``runs/<name>``; without a name, preset and time are the name.

    Raises ConfigurationError for a name that is no folder name, or a folder of another run, StorageError, and, with
    nothing made or changed, what `plan_of` and `check_start` raise, and ShowerFileError for a `data.source` of this
    machine without files.
    """
    name = folder_name(name, run.model.network)
    plan_of(run)
    folder = runs / name
    check_start(run, folder)
    if run.data.source != "simulate" and not is_remote(run.data.source):
        find_files(run.data.source, folder)
    with hold(make_folder(folder)):
        keep_configuration(run, folder)
    return folder


def folder_name(name: str | None, preset: str) -> str:
    """The name of a run's folder; without a name, preset and time. Raises ConfigurationError for no folder name."""
    name = name or f"{preset}-{datetime.now():%Y%m%d-%H%M%S}"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name) or name == "latest":
        remedy = "use letters, digits, '.', '_' and '-', at most 63, and not 'latest'"
        raise ConfigurationError("is not a name for a run", field="--name", value=name, remedy=remedy)
    return name


def point_latest(folder: Path) -> None:
    """Point ``runs/latest`` at a training that has ended well: its model was validated, whatever the verdict.

    A run that continues or failed leaves ``latest`` unchanged, and so does a run of the solver, which makes no model.
    """
    records = read_records(folder)
    if not {"train", "validate"} <= records.keys() or any(one.outcome != "succeeded" for one in records.values()):
        return
    temporary = folder.with_name(f".latest-{secrets.token_hex(8)}")
    try:
        temporary.symlink_to(folder.name)
        temporary.replace(folder.with_name("latest"))
    except OSError as error:
        raise storage_error(error, folder.with_name("latest")) from error


def run_all(run: Run, folder: Path) -> None:
    """Run all stages in a folder; the report is written also when one fails, and the failure is raised then."""
    showers, dataset = folder / "showers", folder / DATASET
    with hold(folder):
        check_training(run)
        stages.plan(run, folder)
        try:
            stages.simulate(run.data, folder, showers)
            stages.preprocess(run.data, folder, showers, dataset)
            stages.train(run, folder, dataset)
            stages.validate(run, folder, dataset, folder / TRAINED)
        except CaloscaleError as error:
            stages.report(run, folder, failure=str(error))
            raise
        stages.report(run, folder)
        point_latest(folder)


def print_outcome(folder: Path) -> int:
    """Print the summary of a run and the path of its report; returns the exit code of the run."""
    records, summary_file = read_records(folder), folder / "summary.json"
    failed = next((r for r in records.values() if r.outcome != "succeeded"), None)
    if failed is not None:
        print(f"error: stage {failed.stage} {failed.outcome}: {failed.error}", file=sys.stderr)
    elif "report" not in records:
        print("error: stage report has no record: its step was killed or did not begin", file=sys.stderr)
    if "report" not in records or not summary_file.is_file():
        return failed.exit_code if failed else 1
    summary = read_block(Summary, summary_file, remedy=f"report again: caloscale report -w {folder}")
    print_rows(folder, _rows(summary))
    if failed is None and summary.outcome == "failed":  # a step that was killed has no record
        print(f"error: {summary.error}", file=sys.stderr)
        return 1
    return failed.exit_code if failed else 0


def print_rows(folder: Path, rows: Iterable[tuple[str, str]]) -> None:
    """Print names and values of what a run gave, and the path of its report."""
    table = Table(title=f"run {named(folder).name}", title_justify="left", show_header=False)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 110).print(table)
    print(f"report: {folder / 'report.html'}")


def _rows(summary: Summary) -> list[tuple[str, str]]:
    """The results of a run: some ten lines, and one for each gate."""
    rows = []
    if data := summary.data:
        rows.append(("showers", f"{data.showers} to train on, {data.validation_showers} held out ({data.source})"))
    rows += [(fact.label, fact.text) for fact in speeds(summary)]
    if physics := summary.physics:
        observables = physics.__pydantic_extra__
        for key, title in (("longitudinalProfile", "longitudinal profile"), ("cellSpectrum", "cell spectrum")):
            if one := observables.get(key):
                text = f"separation {one.separation:.4f}" if one.separation is not None else "not computed"
                others = {"expected null": one.expected_null, "untrained": one.untrained}
                parts = [text, *(f"{name} {value:.4f}" for name, value in others.items() if value is not None)]
                rows.append((title, ", ".join(parts)))
        if (deviation := physics.linearity_deviation) is not None:
            rows.append(("linearity", f"ECAL sum within {100 * deviation:.1f}% of a straight line in energy"))
        if (auc := physics.classifier_auc) is not None:
            trained = f"with {physics.classifier_showers} training showers of each kind"
            rows.append(("classifier AUC", f"{auc:.3f} {trained} (0.5: not distinguishable from Monte Carlo)"))
        rows += _verdict(physics, summary.amplification)
    spent = f"none: {summary.no_price}"
    if bill := summary.bill:
        times = [f"{n.node_hours:.2f} h" if n.node_hours >= 0.1 else f"{3600 * n.node_hours:.0f} s" for n in bill.nodes]
        nodes = ", ".join(f"{held} of {n.title} ({n.capacity_type})" for held, n in zip(times, bill.nodes))
        spent = f"{bill.usd:.4f} USD for {nodes}"
    return [*rows, ("bill", spent)]


def _verdict(physics: PhysicsSummary, worth: Worth | None) -> list[tuple[str, str]]:
    """The decision, what generated showers are worth, each gate, and what has none."""
    text = ": ".join([physics.decision, *(physics.reasons if physics.decision == "not assessed" else ())])
    if physics.warnings:
        text += f"; the generator is {' and '.join(physics.warnings)}"
    lists = {"dropped gates": physics.dropped, "without a gate": physics.ungated}
    return [
        ("verdict", text),
        *(() if worth is None else (("worth", worth_text(worth).text),)),
        *(("gate", gate.statement) for gate in physics.gates),
        *((title, ", ".join(names)) for title, names in lists.items() if names),
    ]
