"""Running a study: its points one after the other, each kept when it is finished."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from caloscale.errors import CaloscaleError, ConfigurationError
from caloscale.progress import bar
from caloscale.spec import Run
from caloscale.spec.problem import suggest
from caloscale.storage.atomic import write_text
from caloscale.studies.measures import MEASURES, Context
from caloscale.studies.points import Point, contents_of
from caloscale.studies.sweep import TODAY, Study, Sweep
from caloscale.studies.whole_run import run_of


def run_points(study: Study, context: Context, folder: Path) -> dict[str, list[Point]]:
    """All points of a study by sweep. Those that ``folder`` holds are not computed again.

    Each point is written when it is finished, atomically; stopping at any time loses at most the one at work. Points
    of a sweep that is repeated are computed round by round. A point that fails has an error, with the sweep and the
    inputs named, and is computed again the next time; when all points fail the first error is raised.
    """
    for sweep in study.sweeps:
        if sweep.measure not in MEASURES:
            problem = "is not a measure"
            remedy = suggest(sweep.measure, MEASURES) or f"one of {', '.join(MEASURES)}"
            raise ConfigurationError(problem, field=f"sweeps.{sweep.name}.measure", value=sweep.measure, remedy=remedy)
        if sweep.repetitions > 1 and sweep.seed is None and not MEASURES[sweep.measure].repeats:
            problem = f"would show the same runs so many times: the measure {sweep.measure} shares runs of equal inputs"
            where, remedy = (
                f"sweeps.{sweep.name}.repetitions",
                "write other seeds, or seed: solver.seed, or leave it out",
            )
            raise ConfigurationError(problem, field=where, value=sweep.repetitions, remedy=remedy)
    points: dict[str, list[Point]] = {}
    total = sum(len(sweep.points()) * sweep.repetitions for sweep in study.sweeps)
    with bar(f"study {study.name}", total, "points") as progress:
        for sweep in study.sweeps:
            points[sweep.name] = []
            for repetition, inputs in _rounds(sweep, context):
                point = _point(sweep, inputs, repetition, context, folder / "points")
                _require_columns(sweep, point)
                points[sweep.name].append(point)
                progress.update()
    every = [point for made in points.values() for point in made]
    if every[0].error is not None and all(point.error is not None for point in every):
        raise every[0].error
    return points


def _require_columns(sweep: Sweep, point: Point) -> None:
    """Raise ConfigurationError where a column does not exist, where one that a speed-up or a figure needs has no
    numbers, or where residuals are all that is shown and the truth is not known: at the first point, not after hours.
    """
    plot, speed = sweep.plot, sweep.speed_up
    numeric = [speed.time, speed.units] if speed else []
    if plot:
        numeric += [plot.y, plot.x] if plot.front else [plot.y]
    try:
        values = {name: point.value(path) for name, path in sweep.columns.items()}
        for name in numeric:
            if not isinstance(values.get(name), int | float | None):
                raise ConfigurationError("has no numbers", field=name, value=values[name], remedy="use another column")
        shown = {path.partition(".")[0] for path in sweep.columns.values()} & {"residuals", "parameters"}
        empty = shown == {"residuals"} or (plot is not None and values.get(plot.y, "") is None)
        if empty and point.result.get("residuals", "") is None:
            remedy = "write columns of parameters.mean, and plot one of them"
            raise ConfigurationError("show residuals, and the truth is not known", field="columns", remedy=remedy)
    except ConfigurationError as error:
        error.file = f"sweep {sweep.name}"
        raise


def runs_of(study: Study, context: Context) -> list[tuple[str, Run]]:
    """Name and run configuration of each point that is a whole run (`run`), of all repetitions.

    Raises ConfigurationError when the study has none, or an input cannot be.
    """
    rests_on = MEASURES["run"].rests_on(context)
    runs = [
        (_name(sweep, inputs, repetition, rests_on), run_of(inputs))
        for sweep in study.sweeps
        if sweep.measure == "run"
        for repetition, inputs in _rounds(sweep, context)
    ]
    if not runs:
        problem = "has no whole runs, which a cluster could make"
        remedy = f"caloscale study {study.name} computes it on this machine"
        raise ConfigurationError(problem, field="study", value=study.name, remedy=remedy)
    return runs


def _rounds(sweep: Sweep, context: Context) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number of the repetition and inputs of all points, round by round."""
    for repetition in range(sweep.repetitions):
        for inputs in sweep.points():
            yield repetition, _resolved(sweep, inputs, repetition, context)


def _point(sweep: Sweep, inputs: dict[str, Any], repetition: int, context: Context, folder: Path) -> Point:
    measure = MEASURES[sweep.measure]
    rests_on = measure.rests_on(context)
    name = _name(sweep, inputs, repetition, rests_on)
    file = folder / f"{name}.json"
    result = _read(file, inputs)
    if result is not None:
        return Point(inputs, result, repetition)
    try:
        result = measure.compute(inputs, context, folder / name)
    except CaloscaleError as error:
        error.file = f"sweep {sweep.name}, point {json.dumps(inputs)}"
        return Point(inputs, {}, repetition, error)
    content = {"sweep": sweep.name, "restsOn": rests_on, "inputs": inputs, "result": result}
    write_text(file, json.dumps(content, indent=1))
    return Point(inputs, result, repetition)


def _resolved(sweep: Sweep, inputs: Mapping[str, Any], repetition: int, context: Context) -> dict[str, Any]:
    """Inputs as in JSON, with the seed of the repetition; dates as text, `today` (which a plan without a day means) as
    the day that was asked for."""
    if sweep.measure == "plan":
        inputs = {"asOf": TODAY, **inputs}
    if sweep.seed is not None:
        inputs = {**inputs, sweep.seed: repetition + 1}
    resolved = {name: context.as_of if value == TODAY else value for name, value in inputs.items()}
    return dict(json.loads(json.dumps(resolved, default=str)))


def _name(sweep: Sweep, inputs: Mapping[str, Any], repetition: int, rests_on: str) -> str:
    """Name of a point's file and folder."""
    text = json.dumps([sweep.measure, inputs, rests_on, *contents_of(inputs)], sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{sweep.name}-{key}" + (f"-{repetition}" if repetition else "")


def _read(file: Path, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """The result of a finished point; None where there is none or the file is not one."""
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        if held["inputs"] == inputs and isinstance(held["result"], dict):
            return dict(held["result"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None
