"""The folder of a run, on a disk and in a bucket."""

from collections.abc import Callable
from pathlib import Path

import pytest

from caloscale import spec, stages
from caloscale.errors import ConfigurationError, HeldError, SupersededError, TrainingError
from caloscale.spec import Run, load_run
from caloscale.spec.workspace_layout import HOLDER, UNCOPIED
from caloscale.stages.record import read_earlier, read_records, recorded
from caloscale.stages.workspace import keep_configuration, open_workspace
from caloscale.storage.objects import download, read_object, upload
from caloscale.training.checkpoint import store
from caloscale.training.checkpoint.store import BucketCopy, Holder
from tests.cluster import examples as ex

COMPACT = spec.load_run(preset="compact")


def test_the_placed_configuration_is_that_of_the_same_run(tmp_path: Path) -> None:
    """What a worker on a cluster reads has machines, batch and paths filled in; the pipeline's steps do not."""
    run = ex.run_of("hardware.accelerator=nvidia-tesla-v100", "hardware.count=16", "hardware.perNode=8")
    keep_configuration(run, tmp_path)
    launch = ex.launch_of(run, *(ex.node(f"n{i}") for i in range(2)))
    placed = spec.build_run(launch.configuration)
    assert placed != run
    keep_configuration(placed, tmp_path)
    assert spec.load_run(tmp_path / "run.yaml") == placed
    written = (tmp_path / "run.yaml").stat().st_mtime_ns
    keep_configuration(placed, tmp_path)
    assert (tmp_path / "run.yaml").stat().st_mtime_ns == written


@pytest.mark.parametrize("override", ["train.seed=2", "data.seed=2", "model.latentSize=7", "train.decay=constant"])
def test_another_training_is_refused(tmp_path: Path, override: str) -> None:
    keep_configuration(COMPACT, tmp_path)
    with pytest.raises(ConfigurationError, match="another configuration") as error:
        keep_configuration(spec.load_run(preset="compact", overrides=[override]), tmp_path)
    assert f"{error.value.field}={error.value.value}" == override
    assert "checkpoints" in str(error.value.remedy)
    assert spec.load_run(tmp_path / "run.yaml") == COMPACT


@pytest.mark.parametrize(
    "override", ["train.epochs=80", "train.strategy=mirrored", "data.simulation.processes=2", "validation.showers=500"]
)
def test_a_training_is_prolonged_or_moved_and_validated_again(tmp_path: Path, override: str) -> None:
    """What docs/recovery.md lets change between restarts; the newest run configuration is kept."""
    keep_configuration(COMPACT, tmp_path)
    changed = spec.load_run(preset="compact", overrides=[override])
    assert changed != COMPACT
    keep_configuration(changed, tmp_path)
    assert spec.load_run(tmp_path / "run.yaml") == changed


def test_fewer_epochs_than_were_trained_are_refused(tmp_path: Path) -> None:
    """The configuration would not be that of the weights. More, and as many, are accepted."""
    keep_configuration(COMPACT, tmp_path)
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "history.json").write_text('{"step": [20, 40], "validation": {"epoch": [4, 7.4]}}')
    for epochs in (80, 8):
        keep_configuration(spec.load_run(preset="compact", overrides=[f"train.epochs={epochs}"]), tmp_path)
    with pytest.raises(ConfigurationError, match=r"less than the 8 epochs") as error:
        keep_configuration(spec.load_run(preset="compact", overrides=["train.epochs=7"]), tmp_path)
    assert (error.value.field, error.value.value) == ("train.epochs", 7) and "8 or more" in str(error.value.remedy)
    assert spec.load_run(tmp_path / "run.yaml").train.epochs == 8


def test_large_folders_stay_where_they_are(bucket_server: str, tmp_path: Path) -> None:
    """Neither fetched, uploaded nor deleted with the rest."""
    large = [f"{folder}/big" for folder in UNCOPIED if folder != HOLDER]
    for name in ("run.txt", "gone", "training/history.json", *large):
        (tmp_path / "before" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "before" / name).write_text("before")
    upload(tmp_path / "before", f"{bucket_server}/run")
    with open_workspace(f"{bucket_server}/run") as folder:
        assert {path.name for path in folder.rglob("*") if path.is_file()} == {"run.txt", "gone", "history.json"}
        (folder / "gone").unlink()
        for name in ("run.txt", "new", large[0], f"{UNCOPIED[1]}/new"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("after")
    download(f"{bucket_server}/run", tmp_path / "after", without=(HOLDER,))
    expected = {"run.txt": "after", "new": "after", "training/history.json": "before", **dict.fromkeys(large, "before")}
    assert contents(tmp_path / "after") == {name: text.encode() for name, text in expected.items()}


def test_records_that_were_set_aside_do_not_come_back(bucket_server: str) -> None:
    """A run that is repeated and fails has no validation of the earlier model; each record is paid for once."""
    place = f"{bucket_server}/repeated"

    def stage(name: str, failure: str = "") -> None:
        with open_workspace(place) as folder, recorded(name, folder):
            if failure:
                raise TrainingError(failure)

    def said() -> tuple[dict[str, str], list[list[str]]]:
        with open_workspace(place) as folder:
            outcomes = {name: record.outcome for name, record in read_records(folder).items()}
            return outcomes, [[record.stage for record in one.stages] for one in read_earlier(folder)]

    stage("train")
    stage("validate")
    with pytest.raises(TrainingError):
        stage("train", "a loss was not finite")
    assert said() == ({"train": "failed"}, [["train", "validate"]])
    stage("train")
    stage("validate")
    assert said() == ({"train": "succeeded", "validate": "succeeded"}, [["train", "validate"], ["train"]])


def test_a_run_in_a_bucket_is_named_after_its_prefix(bucket_server: str) -> None:
    """Its records and the title of its report, not after the temporary folder of a step."""
    with open_workspace(f"{bucket_server}/runs/tungsten-7/") as folder:
        assert folder.name == "tungsten-7"
        (folder / "summary.json").write_text("{}")
    with open_workspace(f"{bucket_server}/runs/tungsten-7") as folder:
        assert (folder / "summary.json").is_file()


def test_one_process_works_in_a_bucket(bucket_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another that gives signs is named; one that gave none for long is replaced, and writes nothing any more."""
    place, far = f"{bucket_server}/held", Holder(token="a" * 8, machine="far", host="far", process=7)
    other = BucketCopy(f"{place}/{HOLDER}", keep=0, holder=far)
    other.claim()
    monkeypatch.setitem(BucketCopy.__init__.__kwdefaults__, "wait", lambda _: other.sign())
    with pytest.raises(HeldError, match="process 7 on far is at work here"), open_workspace(place):
        pytest.fail("it is held")
    with open_workspace(place, shared=True):
        pass
    monkeypatch.setattr(store, "EXPIRY_SECONDS", 0.0)
    with open_workspace(place) as folder:
        (folder / "mine").write_text("mine")
        with pytest.raises(SupersededError):
            other.sign()
    with pytest.raises(SupersededError, match="process 7 on far"), open_workspace(place) as folder:
        (folder / "late").write_text("late")
        BucketCopy(f"{place}/{HOLDER}", keep=0, holder=far).claim()
    assert (read_object(f"{place}/mine"), read_object(f"{place}/late")) == (b"mine", None)


STEPS: dict[str, Callable[[Run, str | Path, Path], object]] = {
    "plan": lambda run, place, _: stages.plan(run, place),
    "shards": lambda run, place, scratch: stages.provide_shards(run, scratch, workspace=str(place)),
    "train": lambda run, place, scratch: stages.train(run, place, scratch / "dataset"),
    "validate": lambda run, place, scratch: stages.validate(run, place, scratch / "dataset", scratch / "trained"),
    "report": lambda run, place, _: stages.report(run, place),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("in_bucket", [False, True])
def test_a_run_that_is_refused_changes_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, step: str, in_bucket: bool
) -> None:
    """Kubeflow's *Clone run* keeps the workspace: with another seed it is another run."""
    run = load_run(preset="compact")
    done = tmp_path / "done"
    with open_workspace(done, run) as folder:
        for stage in ("simulate", "preprocess", "train", "validate"):
            with recorded(stage, folder):
                (folder / f"{stage}.txt").write_text(stage)
        (folder / "report.html").write_text("accepted")
    place: str | Path = done
    if in_bucket:
        place = f"{request.getfixturevalue('bucket_server')}/refused-{step}"
        upload(done, place)
    other = load_run(preset="compact", overrides=["train.seed=77"])
    with pytest.raises(ConfigurationError, match=r"train\.seed"):
        STEPS[step](other, place, tmp_path)
    after = tmp_path / "after"
    if in_bucket:
        download(place, after, without=(HOLDER,))
    assert contents(after if in_bucket else done) == contents(done) and len(contents(done)) == 10


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }
