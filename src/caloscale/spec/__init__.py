"""The run configuration: one frozen model and one parser."""

from caloscale.spec.budget import Budget, PricedMachine
from caloscale.spec.cluster import Checkpoint, Cluster, Recovery
from caloscale.spec.configuration import (
    PRESETS,
    SOLVER_PRESETS,
    build_any_run,
    build_run,
    build_solver_run,
    dump_run,
    load_any_run,
    load_preset,
    load_run,
    load_solver_run,
    parse_any_run,
    parse_run,
)
from caloscale.spec.data import Data, Geometry, LayerGroup, Preprocessing, Simulation
from caloscale.spec.form import EMPTY_FORM, FORM, run_of_form
from caloscale.spec.hardware import Hardware
from caloscale.spec.model import Model
from caloscale.spec.run import Run
from caloscale.spec.solver import DataSet, Solver, SolverRun
from caloscale.spec.train import LossWeights, Train
from caloscale.spec.validation import Gate, Validation
from caloscale.spec.values import Duration, seconds_of

AnyRun = Run | SolverRun
"""A run of either workload: a training, or the solution of an inverse problem."""

__all__ = [
    "EMPTY_FORM", "FORM", "PRESETS", "SOLVER_PRESETS", "AnyRun", "Budget", "Checkpoint", "Cluster", "Data", "DataSet",
    "Duration", "Gate", "Geometry", "Hardware", "LayerGroup", "LossWeights", "Model", "Preprocessing",
    "PricedMachine", "Recovery", "Run", "Simulation", "Solver", "SolverRun", "Train", "Validation", "build_any_run",
    "build_run", "build_solver_run", "dump_run", "load_any_run", "load_preset", "load_run", "load_solver_run",
    "parse_any_run", "parse_run", "run_of_form", "seconds_of",
]  # fmt: skip
