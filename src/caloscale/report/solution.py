"""The report of a solver run: residuals, losses, exchange, bill."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from caloscale import __version__
from caloscale.planning.billing.bill import Bill
from caloscale.report.bill import money_section
from caloscale.report.blocks import Block, Fact, Facts, Notice, Page, Section, Table, Values
from caloscale.report.drawing import GENERATED, MONTE_CARLO_EDGE, Drawing, new_panels, save_figures
from caloscale.report.html import render
from caloscale.sagips.ensemble import Residuals
from caloscale.sagips.saves import Problem, Progress, mean_per_epoch, read_problem
from caloscale.spec import SolverRun, dump_run


def solution_page(
    run: SolverRun,
    folder: Path,
    summary: Mapping[str, Any],
    over_time: Sequence[Residuals],
    records: Sequence[Progress],
    money: Bill | str,
    *,
    notices: tuple[Notice, ...],
) -> str:
    """The page as HTML; figures are written into ``folder``/figures. summary: of summary.json, empty for a failed run.

    over_time: `residuals_over_time`; records: progress of each rank at its end.
    """
    solver = run.solver
    sections = []
    if over_time:
        problem = read_problem(folder)
        drawn = save_figures(folder / "figures", [partial(residual_curves, over_time, problem)])
        title = "Parameters" if problem.truth is None else "Residuals"
        sections.append(Section(title, (*drawn, residual_table(over_time[-1], problem))))
    if records and records[0].history:
        drawn = save_figures(folder / "figures", [partial(loss_curves, records)])
        sections.append(Section("Losses", tuple(drawn)))
    if summary:
        sections.append(Section("Ranks and exchange", (Facts(solution_facts(summary)), *_rank_table(records))))
    provenance = {"caloscale": __version__, "run configuration": dump_run(run)}
    sections += [money_section(money), Section("Provenance", (Values(provenance),))]
    page = Page(
        title=f"inverse problem {solver.preset}: run {folder.name}",
        lead=f"{solver.ranks} rank{'s' if solver.ranks > 1 else ''}, exchange {solver.exchange}, "
        f"{solver.events_per_rank * len(solver.data_sets):,} events a rank and epoch. caloscale {__version__}.",
        notices=notices,
        sections=tuple(sections),
    )
    return render(page)


def solution_facts(summary: Mapping[str, Any]) -> tuple[Fact, ...]:
    """Speed and exchange. summary: of summary.json."""
    seconds, exchange = summary["secondsPerEpoch"], summary["exchangeSecondsPerEpoch"]
    share = f"{100 * exchange / seconds:.2g} % of it" if seconds else ""
    rate = summary["analysisRate"]
    memory = summary["deviceMemoryBytes"]
    ended = ", ended by solver.maxMinutes" if summary.get("stopped") == "maxMinutes" else ""
    return (
        Fact("epoch", _milliseconds(seconds), f"{summary['epochs']:,} epochs{ended}, mean over the ranks"),
        Fact("exchange in an epoch", _milliseconds(exchange), share),
        Fact(
            "copy of the gradient",
            _milliseconds(summary["transferSecondsPerEpoch"]),
            "into host memory, in which it is exchanged; a rank and epoch",
        ),
        *([] if memory is None else [Fact("device memory", f"{memory / 2**20:.0f} MiB", "largest of a rank")]),
        Fact("analysis rate", "not timed" if rate is None else f"{rate:.4g} events/s", "all ranks together"),
        Fact("stale gradients", f"{summary['stale']:,}", "of an earlier epoch; they were used"),
        Fact("dropped gradients", f"{summary['dropped']:,}", "not finite; they were left out"),
    )


def _milliseconds(seconds: float | None) -> str:
    """Of an epoch; the first of an attempt is not timed."""
    return "not timed" if seconds is None else f"{1000 * seconds:.3g} ms"


def _rank_table(records: Sequence[Progress]) -> tuple[Block, ...]:
    """A row for each rank, of at most 64."""
    rows = [
        {
            "rank": str(rank),
            "epochs": f"{record.epoch:,}",
            "epoch": _milliseconds(mean_per_epoch([record], "timed_seconds")),
            "processor": _milliseconds(mean_per_epoch([record], "processor_seconds")),
            "exchange": _milliseconds(mean_per_epoch([record], "exchange_seconds")),
            "received": f"{record.contributions:,}",
            **{name: f"{getattr(record, name):,}" for name in ("stale", "repeated", "missing", "dropped")},
        }
        for rank, record in enumerate(records[:64])
    ]
    note = "received: gradients of other ranks in the averages; repeated and missing: slots without a new gradient."
    return (Table.of("Ranks", rows, note=note),) if rows else ()


def residual_table(last: Residuals, problem: Problem) -> Table:
    """Of the last checkpoint the residuals, or where the truth is not known the parameters."""
    known = problem.truth is not None
    spreads = [""] * len(problem.parameters) if last.spread is None else [f"{s:.4f}" for s in last.spread]
    rows = tuple(
        (name, f"{m:{'+' if known else ''}.4f}", s, f"{n:.4f}")
        for name, m, s, n in zip(problem.parameters, last.mean, spreads, last.noise)
    )
    seen = f"Mean absolute residual {last.mean_absolute:.4f}" if known else "The truth is not known. Parameters"
    note = f"{seen} after {last.epoch:,} epochs and {last.seconds:.0f} s."
    columns = ("parameter", "residual" if known else "value", "spread of the generators", "spread over the noise")
    caption = (
        "Residuals (p - p^) / p of the normalised parameters" if known else "Normalised parameters, between 0 and 1"
    )
    return Table(caption, columns, rows, note=note)


def residual_curves(over_time: Sequence[Residuals], problem: Problem) -> Drawing:
    """A panel for each parameter: residual, or the parameter, against wall time, with the spread of the generators."""
    names, kind = problem.parameters, "residual" if problem.truth is not None else "parameter"
    several = all(point.spread is not None for point in over_time)
    page, axes = new_panels(len(names), 3, 4.2, 2.9)
    x = np.array([point.seconds for point in over_time])
    for index, (ax, name) in enumerate(zip(axes, names)):
        mean = np.array([point.mean[index] for point in over_time])
        if problem.truth is not None:
            ax.axhline(0, color=MONTE_CARLO_EDGE, linewidth=0.9)
        if several:
            spread = np.array([point.spread[index] for point in over_time if point.spread is not None])
            ax.fill_between(x, mean - spread, mean + spread, color=GENERATED, alpha=0.25, linewidth=0)
        ax.plot(x, mean, "o-", color=GENERATED, markersize=3, linewidth=1.4)
        ax.set_title(name, fontsize=12)
        ax.set(xlabel="wall time, s", ylabel="" if index % 3 else kind)
    seen = [f"{name} {over_time[0].mean[i]:+.2f} to {over_time[-1].mean[i]:+.3f}" for i, name in enumerate(names)]
    return Drawing(
        f"{kind}s",
        f"{kind.capitalize()}s against wall time",
        "Mean over generators and noise"
        f"{'; the band is the standard deviation over the generators' if several else ', of one generator'}.",
        f"From the first to the last checkpoint: {', '.join(seen)}.",
        page,
    )


def loss_curves(records: Sequence[Progress]) -> Drawing:
    """A panel for each loss, a line for each rank, of at most 16."""
    losses = [name for name in records[0].history if name not in ("epoch", "seconds")]
    page, axes = new_panels(len(losses), len(losses), 4.2, 2.9)
    for ax, name in zip(axes, losses):
        for record in records[:16]:
            ax.plot(record.history["epoch"], record.history[name], linewidth=0.9, alpha=0.8)
        if all(value > 0 for record in records for value in record.history[name]):
            ax.set_yscale("log")
        ax.set_title(name, fontsize=12)
        ax.set_xlabel("epoch")
    first = records[0].history
    seen = [f"{name} {first[name][0]:.3g} to {first[name][-1]:.3g}" for name in losses]
    return Drawing("losses", "Losses", "A line for each rank.", f"Of rank 0: {', '.join(seen)}.", page)
