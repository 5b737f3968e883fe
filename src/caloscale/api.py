"""The functions that a notebook uses, as `caloscale.run` and so on; their names are stable."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from caloscale import stages
from caloscale.errors import InputError
from caloscale.planning.catalogue.measurements import load_measurements
from caloscale.planning.catalogue.prices import load_prices, today
from caloscale.planning.search.plan import Plan
from caloscale.planning.search.plan import plan as plan_at
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.reader import check_primaries
from caloscale.showers.primaries import Table, turned
from caloscale.showers.sources import largest_median, read_of_run, sample_of_run
from caloscale.spec import Run

if TYPE_CHECKING:
    from caloscale.physics import Evaluation
    from caloscale.planning.billing.bill import Bill
    from caloscale.stages.summary import Summary
    from caloscale.training.record import TrainingRecord


def run(configuration: Run, *, name: str | None = None, runs: str | Path = "runs") -> Summary:
    """All stages of a run in the folder ``runs/<name>``, as ``caloscale run``; returns what summary.json holds.

    name: of the run; an existing run is resumed. None: preset and time. Raises ConfigurationError for a folder that
    holds a run of another configuration, and what a stage raises.
    """
    from caloscale.stages.summary import Summary

    folder = stages.new_run_folder(configuration, Path(runs), name)
    stages.run_all(configuration, folder)
    return Summary.model_validate_json((folder / "summary.json").read_bytes())


def simulate(configuration: Run, folder: str | Path) -> tuple[Path, ...]:
    """Simulate the showers of a run into HDF5 files of a folder, as ``caloscale simulate``; returns the files.

    Finished files are used again. Raises ConfigurationError when `data.source` is not ``simulate``.
    """
    from caloscale.simulation import simulate as simulate_into

    simulate_into(configuration.data, Path(folder))
    return tuple(sorted(Path(folder).glob("*.h5")))


def train(configuration: Run, *, workspace: str | Path, dataset: str | Path | None = None) -> TrainingRecord:
    """Train on the shards of a folder or bucket, as ``caloscale train``; returns its record, as in stages/train.json.

    The model is in ``<workspace>/training/model``. dataset: None is ``<workspace>/dataset``, or that of its
    pipeline. A training that was interrupted resumes. Raises ConfigurationError, ShowerFileError and CheckpointError,
    which name field and remedy.
    """
    return stages.train(configuration, workspace, dataset or stages.dataset_of(Path(workspace)))


def validate(configuration: Run, *, workspace: str | Path, dataset: str | Path | None = None) -> Evaluation:
    """Judge the model in ``<workspace>/training/model`` by the gates of the run, as ``caloscale validate``.

    dataset: the shards with the held-out showers; None is as in `train`. The model goes to
    ``<workspace>/model`` unless it is rejected. Raises ShowerFileError and CheckpointError.
    """
    trained = Path(workspace) / "training" / "model"
    return stages.validate(configuration, workspace, dataset or stages.dataset_of(Path(workspace)), trained)


def bill(workspace: str | Path) -> Bill:
    """What a finished run cost, in US dollars: machines, seconds, and their prices with dates.

    Raises InputError for a folder that is no run, and PriceError for a machine without a price.
    """
    from caloscale.stages.planning import bill_of

    return bill_of(Path(workspace))


def plan(run: Run, *, as_of: dt.date | None = None, generate: int | None = None) -> Plan:
    """Choose machines for a run by the catalogue's prices: ``chosen`` has machines, layout, seconds and US dollars.

    This machine counts, too, when it was measured (``own_training``), as in ``caloscale plan``.

    as_of: day of the prices; None: today. generate: number of showers that the trained generator makes, whose cost is
    added. Nothing is read from or written to the folder of a run. `hardware` of the run restricts the choice.
    Raises ConfigurationError and PriceError, which name the field or the price that is missing.
    """
    if generate is not None and generate < 1:
        raise InputError("must be at least 1", field="generate", value=generate, remedy="give a number of showers")
    from caloscale.stages.planning import load_speeds

    return plan_at(run, load_prices(), load_measurements(), as_of or today(), speeds=load_speeds(), generate=generate)


def read_showers(path: str | Path, run: Run, *, start: int = 0, stop: int | None = None) -> Showers:
    """Read the showers ``start:stop`` of a file, re-binned as the networks of a run see them, or as they are in a file
    that is re-binned, as those of ``caloscale generate`` are.

    path: HDF5 in a published layout, or .npz and .root with plain arrays (`caloscale.showers.files`).

    Cells are deposited energies in GeV, float32 (N, X, Y, Z); energies in GeV, angles in rad, both (N,).
    Raises ShowerFileError, which names file, field, value and remedy, for a file of another detector than the run's,
    for showers none of which has a primary of the run, and, in an HDF5 file that does not state its unit, for sums of
    cells that the run's detector does not sample.
    """
    return read_of_run(path, run.data, start=start, stop=stop)


def evaluate(
    generated: Showers | str | Path,
    *,
    reference: Showers | str | Path,
    training: Showers | str | Path | None = None,
    run: Run,
) -> Evaluation:
    """Compare generated showers with held-out Monte Carlo showers and decide by the gates of the run.

    Each is `Showers`, re-binned as `read_showers` and `Generator.generate` give them, or a file that `read_showers`
    reads; in all of them cells below ``data.preprocessing.thresholdGev`` count as empty, and Monte Carlo showers with a
    sum not above ``minimumSumGev`` are left out, as in the run's own validation. reference: held out
    from the training. training: what the generator was trained on; the baseline, the bins and the classifier need it.
    None: half of the reference, drawn by ``validation.seed``, which is then not compared.
    The decision is in ``decision``, the reasons are in ``gates``, hist histograms in ``histograms``; the definitions
    are those of the page on the validation of the physics.
    Raises InputError for empty samples, other shapes, a file of another primary, primaries outside of the ranges of the
    run, without a column of them or distributed otherwise than those of the reference (for generated showers with those
    that are left out, too; then there is a warning), a reference that is generated where the others are not or whose
    showers are among the others, and Monte Carlo cells that are negative or not finite.
    """
    from caloscale.physics import compare  # needs an extra that load_run and plan do not need
    from caloscale.physics import evaluate as evaluate_comparison
    from caloscale.physics.comparison import refuse_shared, refuse_unlike

    def showers(given: Showers | str | Path, name: str) -> tuple[Showers, Table]:
        found = given if isinstance(given, Showers) else read_showers(given, run)
        check_primaries(name, "plain", found.primaries)
        sample = sample_of_run(found, run.data, judged=name == "generated", field=name)
        deposit = float(np.median(sample.ecal_sum_gev / sample.energy_gev))
        if name != "generated" and deposit > largest_median(run.data):
            problem = "have cells that sum up to more of the primary's energy than the detector samples (median)"
            remedy = "give cells and energies in GeV, or correct data.geometry (calibrated)"
            raise InputError(problem, field=name, value=deposit, remedy=remedy)
        return sample, turned(found.primaries, run.data)

    (held_out, whole), (judged, _) = showers(reference, "reference"), showers(generated, "generated")
    if held_out.source == "generated" != judged.source:
        problem = "are generated, and those that they would judge are not"
        raise InputError(problem, field="reference", value=judged.source, remedy="exchange generated and reference")
    refuse_shared("generated", judged, held_out)
    warnings = refuse_unlike("generated", judged.primaries, held_out.primaries, whole)
    if training is None:
        order = np.random.default_rng(run.validation.seed).permutation(len(held_out))
        trained, held_out = held_out[order[: len(order) // 2]], held_out[order[len(order) // 2 :]]
    else:
        trained, _ = showers(training, "training")
        refuse_shared("training", trained, held_out)
        refuse_unlike("training", trained.primaries, held_out.primaries)
    comparison = compare(held_out, judged, training=trained, untrained=None, data=run.data, validation=run.validation)
    evaluation = evaluate_comparison(comparison)
    evaluation = evaluation.model_copy(update={"warnings": (*evaluation.warnings, *warnings)})
    return evaluation.with_histograms(comparison.histograms())
