"""The profile of a step without a training: a few steps of the engine on showers that are read as in one."""

from pathlib import Path
from tempfile import TemporaryDirectory

import tensorflow as tf

from caloscale.errors import CaloscaleError
from caloscale.models.optimizers import Schedule
from caloscale.profiling.peak import measure_peak
from caloscale.profiling.profile import StepProfiler, describe
from caloscale.profiling.result import Profile
from caloscale.profiling.trace import Trace
from caloscale.showers.tfrecord.manifest import read_manifest
from caloscale.showers.tfrecord.shards import preprocess_showers
from caloscale.simulation import simulate
from caloscale.spec import Run
from caloscale.training.input import TrainingShowers, check_manifest
from caloscale.training.state import TrainingState, make_steps

WARM_UP = 3


def profile_step(run: Run, batch: int, *, steps: int, dataset: Path | None = None) -> Profile:
    """Make a few steps on batches of ``batch`` showers in this process and profile ``steps`` of them.

    dataset: a folder of shards of the run; absent, some are made of parametrised showers.
    """
    with TemporaryDirectory(prefix="caloscale-profile-") as temporary:
        folder = dataset or _sample_shards(run, Path(temporary), max(256, 2 * batch))
        manifest = read_manifest(folder)
        check_manifest(folder, manifest, run.data)
        showers = TrainingShowers(folder, manifest, batch, seed=run.train.seed, mirror=run.data.mirror)
        state = TrainingState(run)
        traces: list[Trace] = []
        profiler = StepProfiler(traces.append, first=WARM_UP, count=steps)

        def before() -> float:
            profiler.batch_ready()
            return 0.0

        def after(losses: object) -> bool:
            profiler.step_done()
            return True

        count = WARM_UP + steps
        batches = showers.batches(start=0, stop=count)
        try:
            make_steps(state, Schedule(0, "constant"), batches, count, before=before, after=after)
        finally:
            profiler.close()
    if not traces:
        raise CaloscaleError(f"TensorFlow {tf.__version__} made no profile of the step")
    return describe(traces[0], state.run, state.networks, batch, measure_peak(state.run.train.precision))


def _sample_shards(run: Run, folder: Path, showers: int) -> Path:
    """A folder of shards for the run, of about this number of parametrised showers, which are as sparse as Geant4's."""
    simulation = run.data.simulation.model_copy(update={"engine": "parametrised"})
    data = run.data.model_copy(update={"source": "simulate", "showers": showers, "simulation": simulation})
    simulate(data, folder / "showers")
    preprocess_showers(data, folder / "showers", folder / "dataset")
    return folder / "dataset"
