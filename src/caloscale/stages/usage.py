"""What a run on one's own machine used, as the bill reads it."""

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from caloscale.errors import InputError
from caloscale.planning.billing.bill import bill
from caloscale.planning.billing.usage import Attempt, NodeUse, RunUse
from caloscale.planning.catalogue.hardware import find_machine
from caloscale.planning.catalogue.prices import load_prices
from caloscale.spec import PricedMachine, Run
from caloscale.stages.record import STAGES, StageRecord, read_earlier, read_records


def own_use(folder: Path, priced_as: PricedMachine, stages: Sequence[str] = STAGES[:-1]) -> RunUse | None:
    """Seconds of the stages in all attempts of a run's folder, on one machine; None when none of them ran.

    The first step of a training is start-up as far as its record states it; the rest is training. The day is that of
    the first stage, in UTC. Raises InputError for a record that is damaged.
    """
    attempts = [*(each.stages for each in read_earlier(folder)), tuple(read_records(folder).values())]
    used = [[record for record in records if record.stage in stages] for records in attempts]
    epochs = next((_epochs(r.figures) for r in used[-1] if r.stage in ("train", "solve")), 0.0)
    if not any(used):
        return None
    return RunUse(
        name=folder.name,
        day=min(record.started for records in used for record in records).astimezone(dt.UTC).date(),
        attempts=tuple(_attempt(records, priced_as) for records in used if records),
        own_machine=True,
        epochs=epochs,
    )


def _epochs(figures: Mapping[str, Any]) -> float:
    """Epochs of a training, with the part of the one in which train.maxMinutes ended it; those of a solver."""
    if not {"steps", "globalBatchSize", "data"} <= figures.keys():
        return float(figures.get("epochs", 0))
    return float(figures["steps"] / (figures["data"]["showers"] // figures["globalBatchSize"]))


def training_usd(run: Run, folder: Path) -> float:
    """US dollars of the training of a run in all its attempts, as budget.pricedAs. InputError: there is no price."""
    use = own_use(folder, run.budget.priced_as, ["train"])
    return 0.0 if use is None else bill(use, load_prices()).usd


def _attempt(records: Sequence[StageRecord], priced_as: PricedMachine) -> Attempt:
    seconds = {record.stage: record.seconds for record in records}
    training = seconds.get("train", 0.0) + seconds.get("solve", 0.0)
    first_step = next((r.figures.get("secondsFirstStep", 0.0) for r in records if r.stage == "train"), 0.0)
    start_up = min(first_step, training)
    return Attempt(
        nodes=(node_as(priced_as, sum(seconds.values())),),
        shower_seconds=seconds.get("simulate", 0.0) + seconds.get("preprocess", 0.0),
        start_up_seconds=start_up,
        training_seconds=training - start_up,
        validation_seconds=seconds.get("validate", 0.0),
        interruptions=int(any(record.outcome == "interrupted" for record in records)),
    )


def node_as(priced_as: PricedMachine, seconds: float = 0.0) -> NodeUse:
    """The machine that ``seconds`` are priced as; a type that the catalogue does not have keeps its name."""
    node = NodeUse(**priced_as.values_of("machine_type", "region", "capacity_type"), nodes=1, seconds=seconds)
    try:
        machine = find_machine(priced_as.machine_type)
    except InputError:
        return node
    return node.model_copy(update=machine.values_of("provider", "machine_type", "accelerator", "per_node"))
