"""The plan as a figure: money against time."""

from __future__ import annotations

from pathlib import Path

from caloscale.planning.plan import Candidate, Plan

HOUR = 3600


def draw_plan(plan: Plan, path: str | Path) -> None:
    """Draw the candidates, the Pareto front and the choice into a file; its suffix is the format (svg, png, pdf)."""
    from matplotlib.figure import Figure  # slow to import, and a plan without a figure has no need of it

    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot()
    for measured, label, colour in ((True, "measured", "tab:blue"), (False, "estimated", "tab:grey")):
        _scatter(axes, [c for c in plan.candidates if c.measured is measured], label, colour)
    front = plan.pareto
    axes.step([c.usd for c in front], [c.total_seconds / HOUR for c in front], where="post", label="Pareto front")
    best = plan.chosen or plan.nearest
    if best is not None:
        name = "chosen" if plan.chosen else "nearest to the limits"
        label = f"{name}: {best.count} x {best.accelerator}, {best.region}, {best.purchase}"
        axes.errorbar(
            best.usd,
            best.total_seconds / HOUR,
            xerr=[[best.usd - best.usd_interval[0]], [best.usd_interval[1] - best.usd]],
            yerr=[
                [(best.total_seconds - best.total_seconds_interval[0]) / HOUR],
                [(best.total_seconds_interval[1] - best.total_seconds) / HOUR],
            ],
            fmt="*",
            markersize=14,
            color="tab:red",
            label=label,
        )
    axes.set(xscale="log", yscale="log", xlabel="money, US dollars", ylabel="time, hours")
    axes.set_title(f"{plan.network}, {plan.epochs} epochs of {plan.showers:,} showers, prices of {plan.prices.as_of}")
    axes.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None} if str(path).endswith(".svg") else None)


def _scatter(axes: object, candidates: list[Candidate], label: str, colour: str) -> None:
    if candidates:
        axes.scatter(  # type: ignore[attr-defined]
            [c.usd for c in candidates],
            [c.total_seconds / HOUR for c in candidates],
            s=9,
            color=colour,
            alpha=0.5,
            label=label,
        )
