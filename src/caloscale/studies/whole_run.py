"""The measure `run`: a whole run of this machine, its quality over time and its profile."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from caloscale.errors import CaloscaleError, ConfigurationError
from caloscale.profiling.result import PROFILE_FILE
from caloscale.spec import Run, dump_run
from caloscale.spec.block import Block
from caloscale.spec.workspace_layout import PHYSICS_FILE
from caloscale.stages.workspace import read_validations
from caloscale.storage.atomic import make_folder
from caloscale.studies.points import configured_run, own_inputs
from caloscale.termination import end_with_parent

WATCH_SECONDS = 2.0
"""Between two looks at the validations of a run."""


class RunInputs(Block):
    """The inputs of a whole run that are no fields of its configuration."""

    deviation: float | None = None
    """Deviation from Monte Carlo for which `quality` says when it was reached."""
    times_preset: float | None = Field(None, gt=0)
    """How many times as many showers as the preset's own training uses, whatever ``data.showers`` is; absent:
    ``train.epochs`` says it."""


def run_of(inputs: Mapping[str, Any]) -> Run:
    """The run configuration of a point: `RunInputs` and its fields. Raises ConfigurationError."""
    asked, fields = own_inputs(RunInputs, inputs)
    if asked.times_preset is None:
        return configured_run(fields)
    preset = configured_run({"model.preset": fields.get("model.preset")})
    showers = configured_run({**fields, "train.epochs": 1}).data.showers
    if "train.epochs" in fields or not (preset.data.showers and showers):
        problem, remedy = "needs data.showers, and no train.epochs", "give the one or train.epochs"
        raise ConfigurationError(problem, field="timesPreset", value=asked.times_preset, remedy=remedy)
    epochs = max(1, round(asked.times_preset * preset.train.epochs * preset.data.showers / showers))
    return configured_run({**fields, "train.epochs": epochs})


def whole_run(
    inputs: Mapping[str, Any], folder: Path, watch: Callable[[Mapping[str, Any]], None] = lambda validations: None
) -> dict[str, Any]:
    """All stages of the run configuration in a separate process, in the point's folder; an interrupted run resumes.

    inputs: `RunInputs` and fields of the run configuration. watch: called with the validations of the training so far
    (`read_validations`), before, during and after it; what it raises ends the run, which can resume, and is raised.
    Result: summary.json; ``training``, the figures of the training stage; ``quality``; ``profile`` (null where the
    training made too few steps); ``ranges``, agreement by energy; ``gates``, how many of each decision; ``auc``, of
    the classifiers; ``effort``, core seconds and their price. Raises CaloscaleError with the exit code of the run.
    """
    asked, run = own_inputs(RunInputs, inputs)[0], run_of(inputs)
    watch(read_validations(folder))
    file = folder / "summary.json"  # of a run that was made here, or copied from a cluster's workspace
    if not file.is_file() or json.loads(file.read_text(encoding="utf-8"))["outcome"] != "succeeded":
        _make(run, folder, watch)
        watch(read_validations(folder))
    summary = json.loads(file.read_text(encoding="utf-8"))
    record = json.loads((folder / "stages" / "train.json").read_text(encoding="utf-8"))
    training = record["figures"]
    physics = folder / PHYSICS_FILE
    evaluation = json.loads(physics.read_text(encoding="utf-8")) if physics.is_file() else {}
    return {
        **summary,
        "training": training,
        "quality": quality(training, read_validations(folder), asked.deviation),
        "profile": parts_of_profile(folder / "training" / PROFILE_FILE),
        "ranges": energy_ranges(evaluation),
        "gates": decisions(evaluation),
        "auc": aucs(evaluation),
        "effort": effort(summary, training, record.get("machine", {}).get("cores")),
    }


def aucs(evaluation: Mapping[str, Any]) -> dict[str, float | None]:
    """AUC of the classifier of an evaluation (JSON): of 1,000 showers of each kind and extrapolated to infinitely many,
    and of the layer energies alone, of 1,000; null where it could not be measured."""

    def of_thousand(name: str) -> float | None:
        curve = evaluation.get(name, {}).get("learningCurve", ())
        return next((point["value"] for point in curve if point["showers"] == 1000), None)

    extrapolated = evaluation.get("classifier", {}).get("limit", {}).get("value")
    return {"all": of_thousand("classifier"), "extrapolated": extrapolated, "layers": of_thousand("layerClassifier")}


def effort(summary: Mapping[str, Any], training: Mapping[str, Any], cores: int | None) -> dict[str, float | None]:
    """What the showers and the training took, whatever else the machine did.

    summary: of a run (JSON); training: figures of its training stage; cores: of the machine. Result: processor time for
    the ``simulation`` of all showers, also where they were kept from before, for the ``training`` and for ``both``, s;
    ``usd``, the price of both with every core in use, at the rate of the bill; ``millisecondsPerShower`` of the
    generator, wall time. Null: not known; the training also of several workers, and the price where it is another's
    machine.
    """
    simulated, data, bill, made = (summary.get(name) for name in ("simulation", "data", "bill", "generate"))
    simulation = both = usd = None
    trained = training["coreSeconds"] if training.get("workers") == 1 else None
    if simulated and data:
        simulation = simulated["coreSecondsPerShower"] * (data["showers"] + data["validationShowers"])
        both = None if trained is None else simulation + trained
    if both is not None and cores and bill and bill["ownMachine"]:
        usd = both / cores / 3600 * bill["nodes"][0]["usdPerNodeHour"]
    milliseconds = 1000 / made["showersPerSecond"] if made else None
    times = {"simulation": simulation, "training": trained, "both": both}
    return {**times, "usd": usd, "millisecondsPerShower": milliseconds}


def decisions(evaluation: Mapping[str, Any]) -> dict[str, int]:
    """How many gates of an evaluation (JSON) are accepted, rejected and undecided."""
    counted = Counter(gate["decision"] for gate in evaluation.get("gates", ()))
    return {decision: counted[decision] for decision in ("accepted", "rejected", "undecided")}


def energy_ranges(evaluation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Agreement with Monte Carlo in each range of energy of an evaluation (JSON), the lowest first."""
    parts = (evaluation.get(name, ()) for name in ("energyRanges", "response", "showerMaximum"))
    return [
        {
            "lowGev": each["low"],
            "highGev": each["high"],
            "response": response["ratio"]["value"],
            "responseUncertainty": response["ratio"]["uncertainty"],
            "maximumLayers": maximum["fittedDifferenceLayers"]["value"],
        }
        for each, response, maximum in zip(*parts)
    ]


def start_run(run: Run, folder: Path, *, anew: bool = False) -> subprocess.Popen[bytes]:
    """`caloscale run` of a configuration in a folder, with a log next to it; anew: replaces an older log."""
    make_folder(folder)
    configuration = folder.with_suffix(".yaml")
    configuration.write_text(dump_run(run), encoding="utf-8")
    words = ("run", str(configuration), "--name", folder.name, "--runs", str(folder.parent))
    command = (sys.executable, "-P", "-m", "caloscale.cli.main", *words)
    with folder.with_suffix(".log").open("wb" if anew else "ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, preexec_fn=end_with_parent)


def _make(run: Run, folder: Path, watch: Callable[[Mapping[str, Any]], None]) -> None:
    process, log = start_run(run, folder, anew=True), folder.with_suffix(".log")
    if code := finish(process, lambda: watch(read_validations(folder))):
        tail = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()][-2:]
        error = CaloscaleError(" ".join(line.strip() for line in tail) or "the run failed", remedy=f"read {log}")
        error.exit_code = code if code > 0 else 128 - code  # as a shell has a signal
        raise error


def quality(training: Mapping[str, Any], validation: Mapping[str, Any], wanted: float | None) -> dict[str, Any]:
    """When the deviation from Monte Carlo on validation showers first was ``wanted`` or less.

    training: figures of the training stage; validation: ``epoch`` and ``deviation`` of each validation. Result:
    ``lowest`` deviation; ``epoch``, ``steps`` and ``seconds`` at which the wanted one was reached, null when it was not
    or none is wanted. Seconds are the time of the first step and a part of the rest in proportion to the steps.
    """
    pairs = [(n, d) for n, d in zip(validation["epoch"], validation.get("deviation", ())) if d is not None]
    found = {"lowest": min((d for _, d in pairs), default=None), "epoch": None, "steps": None, "seconds": None}
    reached = [epoch for epoch, deviation in pairs if wanted is not None and deviation <= wanted]
    if reached:
        # The last step is compared, too; train.maxMinutes may end the training within an epoch.
        steps = round(training["steps"] * reached[0] / validation["epoch"][-1])
        first, whole = training["secondsFirstStep"], training["seconds"]
        share = (steps - 1) / max(training["steps"] - 1, 1)
        found |= {"epoch": reached[0], "steps": steps, "seconds": first + share * (whole - first)}
    return found


def parts_of_profile(file: Path) -> dict[str, Any] | None:
    """The profile of a training with its shares summed over the phases."""
    if not file.is_file():
        return None
    profile: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    parts = dict.fromkeys(("forward", "backPropagation", "allReduce", "optimizer"), 0.0)
    for share in profile["shares"]:
        parts[share["part"]] += share["share"]
    return {**profile, **parts}


def finish(process: subprocess.Popen[bytes], watch: Callable[[], None], seconds: float = WATCH_SECONDS) -> int:
    """Exit code of a process. watch: called at intervals of ``seconds`` until the process ends.

    When this process is interrupted, or watch raises, that one is terminated first, so that both resume.
    """
    try:
        while True:
            try:
                return process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                watch()
    except BaseException:
        process.terminate()
        process.wait()
        raise
