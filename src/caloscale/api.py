"""The functions that a notebook uses, as `caloscale.load_run` and so on; their names are stable."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

from caloscale.planning.catalogue.measurements import load_measurements
from caloscale.planning.catalogue.prices import load_prices, today
from caloscale.planning.search.plan import Plan
from caloscale.planning.search.plan import plan as plan_at
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.reader import read_showers as read_file
from caloscale.spec import Run, load_run

if TYPE_CHECKING:
    from caloscale.physics import Evaluation

__all__ = ["evaluate", "load_run", "plan", "read_showers"]


def plan(run: Run, *, as_of: dt.date | None = None, generate: int | None = None) -> Plan:
    """Choose machines for a run by the catalogue's prices: ``chosen`` has machines, layout, seconds and US dollars.

    as_of: day of the prices; None: today. generate: number of showers that the trained generator makes, whose cost is
    added. Nothing is read from or written to the folder of a run. `hardware` of the run restricts the choice.
    Raises ConfigurationError and PriceError, which name the field or the price that is missing.
    """
    return plan_at(run, load_prices(), load_measurements(), as_of or today(), generate=generate)


def read_showers(path: str | Path, run: Run, *, start: int = 0, stop: int | None = None) -> Showers:
    """Read the showers ``start:stop`` of an HDF5 file, re-binned as the networks of a run see them, or as they are in a
    file of ``caloscale generate``, which is re-binned.

    Cells are deposited energies in GeV, float32 (N, X, Y, Z); energies in GeV, angles in rad, both (N,).
    Raises ShowerFileError, which names file, field, value and remedy, for a file that does not fit the detector of
    the run.
    """
    data = run.data
    return read_file(path, geometry=data.geometry, rebin=data.preprocessing.rebin, start=start, stop=stop)


def evaluate(generated: Showers, *, reference: Showers, training: Showers, run: Run) -> Evaluation:
    """Compare generated showers with held-out Monte Carlo showers and decide by the gates of the run.

    reference: held out from the training. training: what the generator was trained on; the baseline, the bins and the
    classifier need it. All are re-binned, as `read_showers` and `Generator.generate` give them. The decision is in
    ``decision``, the reasons are in ``gates``; the definitions are those of the page on the validation of the physics.
    Raises InputError for empty samples, other shapes, and Monte Carlo cells that are negative or not finite.
    """
    from caloscale.physics import compare  # needs an extra that load_run and plan do not need
    from caloscale.physics import evaluate as evaluate_comparison

    comparison = compare(
        reference, generated, training=training, untrained=None, data=run.data, validation=run.validation
    )
    return evaluate_comparison(comparison)
