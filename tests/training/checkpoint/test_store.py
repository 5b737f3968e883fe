"""Checkpoints in a folder and in a real bucket, with damage."""

import logging

import numpy as np
import pytest

from caloscale.errors import CheckpointError, InputError, StorageError
from caloscale.storage.objects import delete_object, download, read_object, write_object
from caloscale.training.checkpoint.format import encode
from caloscale.training.checkpoint.metadata import Progress
from caloscale.training.checkpoint.store import POINTER, SELECTED, BucketCopy, CheckpointFolder, Pointer

IDENTITY = {"model": {"preset": "compact"}, "train": {"seed": 1}}


def weights(value):
    return {"generator/000": np.full(3, value, np.float32), "generator/001": np.array(value, np.float32)}


def progress(step, **more):
    history = {"step": [step], "validation": {"epoch": []}}
    return Progress(step=step, seconds=1.5, core_seconds=2.0, history=history, **more)


@pytest.fixture
def folder(tmp_path):
    made = CheckpointFolder(tmp_path / "checkpoints", keep=2, identity=IDENTITY)
    for step in (1, 2, 3):
        made.write(weights(step), progress(step))
    return made


def names(folder):
    return sorted(path.name for path in folder.path.iterdir())


def test_the_newest_are_kept_and_read(folder):
    assert names(folder) == ["step-000000002.safetensors", "step-000000003.safetensors"]
    saved = folder.newest()
    assert (saved.progress.step, saved.progress.seconds, saved.progress.history["step"]) == (3, 1.5, [3])
    assert saved.arrays["generator/000"].tolist() == [3, 3, 3]


def test_no_checkpoint_is_a_beginning(tmp_path):
    nothing = CheckpointFolder(tmp_path / "nothing", keep=1, identity={})
    assert nothing.newest() is None
    assert nothing.selected() is None


@pytest.mark.parametrize("fault", ["truncated", "changed", "empty"])
def test_a_damaged_one_is_passed_over_with_a_warning(folder, caplog, fault):
    """Lost: the steps since the checkpoint before it."""
    path = folder.path / "step-000000003.safetensors"
    content = path.read_bytes()
    if fault == "changed":
        path.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
    else:
        path.write_bytes(content[: len(content) // 2] if fault == "truncated" else b"")
    with caplog.at_level(logging.WARNING):
        saved = folder.newest()
    assert saved.progress.step == 2
    assert saved.arrays["generator/000"].tolist() == [2, 2, 2]
    assert "step-000000003" in caplog.text
    assert "the checkpoint before it" in caplog.text
    folder.write(weights(7), progress(2))
    assert names(folder) == ["step-000000002.safetensors"], "what the training was taken back behind does not come back"


def test_one_of_another_version_is_no_damaged_one(folder, bucket, tmp_path):
    """Training from the beginning, or from one before it, would remove it."""
    path = folder.path / "step-000000003.safetensors"
    path.write_bytes(encode(weights(3), '{"format": 0}'))
    with pytest.raises(InputError, match=r"(?s)of another version.*remedy: train with that version"):
        folder.newest()
    copy = BucketCopy(bucket, keep=2)
    copy.claim()
    copy.upload(path, path.read_bytes())
    with pytest.raises(InputError, match="of another version"):
        BucketCopy(bucket, keep=2).fetch(elsewhere(tmp_path))
    assert len(pointer(bucket).checkpoints) == 1 and not (tmp_path / "elsewhere").exists()


def test_all_damaged(folder):
    for path in folder.path.iterdir():
        path.write_text("{")
    with pytest.raises(CheckpointError, match="all checkpoints are damaged"):
        folder.newest()


def test_another_network(folder):
    other = CheckpointFolder(folder.path, keep=2, identity={**IDENTITY, "model": {"preset": "fixed-angle"}})
    with pytest.raises(CheckpointError, match=r"model.preset: is a checkpoint of another network.*'compact'") as error:
        other.newest()
    assert error.value.exit_code == 2
    assert "delete" in error.value.remedy


def test_the_selected_generator_is_kept_apart(folder, caplog):
    folder.write(weights(7), progress(7, selected_epoch=4, selected_step=7, selected_deviation=0.25), selected=True)
    folder.write(weights(8), progress(7, selected_epoch=4, selected_step=7, selected_deviation=0.25), selected=True)
    folder.write(weights(9), progress(9))
    selected = folder.selected()
    assert (selected.progress.selected_epoch, selected.arrays["generator/000"].tolist()) == (4, [8, 8, 8])
    assert names(folder) == [SELECTED, "step-000000003.safetensors", "step-000000009.safetensors"]
    (folder.path / SELECTED).write_bytes(b"x")
    assert folder.selected() is None
    assert "the selected generator is lost" in caplog.text


def test_a_failed_write_leaves_the_others(folder):
    before = names(folder)
    (folder.path / "step-000000004.safetensors").mkdir()
    (folder.path / "step-000000004.safetensors" / "full").touch()
    with pytest.raises(StorageError, match="step-000000004"):
        folder.write(weights(4), progress(4))
    (folder.path / "step-000000004.safetensors" / "full").unlink()
    (folder.path / "step-000000004.safetensors").rmdir()
    assert names(folder) == before
    assert folder.newest().progress.step == 3


def test_what_a_killed_process_left_is_removed(folder):
    (folder.path / ".partial-1234-step-000000004.safetensors").write_text("half")
    folder.clean()
    assert names(folder) == ["step-000000002.safetensors", "step-000000003.safetensors"]


@pytest.fixture
def bucket(bucket_server, request):
    return f"{bucket_server}/{request.node.name}"


def uploaded(folder, uri, *steps):
    copy = BucketCopy(uri, keep=2)
    for step in steps:
        path = folder.write(weights(step), progress(step))
        copy.upload(path, path.read_bytes())
    return copy


def pointer(uri):
    return Pointer.model_validate_json(read_object(f"{uri}/{POINTER}"))


def object_of(uri, file):
    """URI of the object that the pointer has for a file."""
    found = pointer(uri)
    (name,) = [each.name for each in (*found.checkpoints, found.selected) if each is not None and each.file == file]
    return f"{uri}/{name}"


def elsewhere(tmp_path):
    return CheckpointFolder(tmp_path / "elsewhere", keep=2, identity=IDENTITY)


def test_a_bucket_brings_the_newest_to_another_machine(folder, bucket, tmp_path):
    """A node that is gone with its disk. Lost: the steps since the last upload."""
    selected = folder.write(weights(8), progress(3, selected_epoch=1), selected=True)
    uploaded(folder, bucket, 4, 5, 6).upload(selected, selected.read_bytes())
    objects = {path.name for path in download(bucket, tmp_path / "all")}
    assert objects == {POINTER} | pointer(bucket).objects and len(objects) == 4
    assert [each.file for each in pointer(bucket).checkpoints] == [f"step-00000000{n}.safetensors" for n in (6, 5)]
    other = elsewhere(tmp_path)
    BucketCopy(bucket, keep=2).fetch(other)
    assert names(other) == [SELECTED, "step-000000006.safetensors"]
    assert other.newest().arrays["generator/000"].tolist() == [6, 6, 6]
    assert other.selected().progress.selected_epoch == 1


@pytest.mark.parametrize("fault", ["damaged", "missing"])
def test_a_damaged_object_is_passed_over(folder, bucket, tmp_path, caplog, fault):
    uploaded(folder, bucket, 4, 5)
    victim = object_of(bucket, "step-000000005.safetensors")
    content = read_object(victim)
    write_object(content[:-1] + b"?", victim) if fault == "damaged" else delete_object(victim)
    other = elsewhere(tmp_path)
    BucketCopy(bucket, keep=2).fetch(other)
    assert other.newest().progress.step == 4
    assert "step-000000005" in caplog.text
    delete_object(object_of(bucket, "step-000000004.safetensors"))
    with pytest.raises(CheckpointError, match="all checkpoints are damaged"):  # as in a folder
        BucketCopy(bucket, keep=2).fetch(elsewhere(tmp_path / "another"))
    BucketCopy(bucket, keep=2).fetch(other)
    assert other.newest().progress.step == 4


def test_what_is_not_pointed_to_does_not_count(folder, bucket, tmp_path):
    """Killed between the upload and the pointer."""
    uploaded(folder, bucket, 4)
    write_object(b"half of it", f"{bucket}/step-000000005.safetensors")
    other = elsewhere(tmp_path)
    BucketCopy(bucket, keep=2).fetch(other)
    assert names(other) == ["step-000000004.safetensors"]


def test_the_newer_of_folder_and_bucket_wins(folder, bucket, tmp_path):
    uploaded(folder, bucket, 4)
    folder.write(weights(6), progress(6))
    BucketCopy(bucket, keep=2).fetch(folder)
    assert folder.newest().progress.step == 6, "the bucket was away when 6 was written"
    other = elsewhere(tmp_path)
    other.write(weights(2), progress(2))
    other.write(weights(2), progress(2, selected_epoch=1), selected=True)
    newer = folder.write(weights(4), progress(4, selected_epoch=2), selected=True)
    BucketCopy(bucket, keep=2).upload(newer, newer.read_bytes())
    BucketCopy(bucket, keep=2).fetch(other)
    assert (other.newest().progress.step, other.selected().progress.selected_epoch) == (4, 2)


def test_a_damaged_file_is_brought_again(folder, bucket):
    copy = uploaded(folder, bucket, 4)
    (folder.path / "step-000000004.safetensors").write_bytes(b"torn")
    copy.fetch(folder)
    assert folder.newest().progress.step == 4


def test_a_damaged_file_does_not_count_as_newer(folder, bucket, tmp_path):
    """Lost: the steps since the upload, not those since the checkpoint before the damaged one."""
    uploaded(folder, bucket, 4)
    other = elsewhere(tmp_path)
    other.write(weights(2), progress(2))
    other.write(weights(6), progress(6)).write_bytes(b"torn")
    BucketCopy(bucket, keep=2).fetch(other)
    assert other.newest().progress.step == 4


@pytest.mark.parametrize("step", [2, 3, 9])
def test_the_bucket_of_another_run_is_refused_before_anything_is_changed(folder, bucket, tmp_path, step):
    """A wrong checkpoint.uri: both runs keep what they have, and with the right one this run resumes."""
    other = CheckpointFolder(tmp_path / "other", keep=2, identity={**IDENTITY, "train": {"seed": 2}})
    theirs = other.write(weights(1), progress(1), selected=True)
    uploaded(other, bucket, step).upload(theirs, theirs.read_bytes())
    folder.write(weights(1), progress(1), selected=True)
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    with pytest.raises(CheckpointError, match=r"train\.seed: is a checkpoint of another run") as error:
        BucketCopy(bucket, keep=2).fetch(folder)
    assert error.value.file == object_of(bucket, f"step-00000000{step}.safetensors")
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before
    (folder.path / SELECTED).unlink()
    only = pointer(bucket).model_copy(update={"checkpoints": ()})
    write_object(only.model_dump_json(by_alias=True).encode(), f"{bucket}/{POINTER}")
    with pytest.raises(CheckpointError, match=r"selected-\w+\.safetensors: train\.seed"):
        BucketCopy(bucket, keep=2).fetch(folder)
    assert not (folder.path / SELECTED).exists()


def test_a_damaged_selection_in_the_bucket_does_not_replace_a_good_one(folder, bucket, tmp_path, caplog):
    newer = folder.write(weights(4), progress(4, selected_epoch=2), selected=True)
    uploaded(folder, bucket, 4).upload(newer, newer.read_bytes())
    torn = object_of(bucket, SELECTED)
    write_object(b"torn", torn)
    other = elsewhere(tmp_path)
    other.write(weights(2), progress(2), selected=True)
    BucketCopy(bucket, keep=2).fetch(other)
    assert (other.newest().progress.step, other.selected().progress.step) == (4, 2)
    assert torn in caplog.text


def test_a_bucket_without_checkpoints_and_no_bucket(bucket, tmp_path):
    BucketCopy(bucket, keep=2).fetch(elsewhere(tmp_path))
    assert elsewhere(tmp_path).newest() is None
    with pytest.raises(StorageError, match="no such bucket"):
        BucketCopy("gs://nobody/here", keep=2).fetch(elsewhere(tmp_path))
    write_object(b"[]", f"{bucket}/{POINTER}")
    with pytest.raises(StorageError, match="not a list of checkpoints"):
        BucketCopy(bucket, keep=2).fetch(elsewhere(tmp_path))
