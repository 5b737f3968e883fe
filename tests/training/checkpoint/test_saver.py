"""Saving in the background: order, failures, and a bucket that does not answer for a while."""

import logging
import threading

import pytest

from caloscale.errors import StorageError, UnreachableError
from caloscale.storage import objects
from caloscale.training.checkpoint import saver as saver_module
from caloscale.training.checkpoint.saver import Saver
from caloscale.training.checkpoint.store import SELECTED, START_RETRY_SECONDS, BucketCopy, CheckpointFolder

from .test_fencing import URI, bucket
from .test_store import IDENTITY, names, progress, weights

__all__ = ["bucket"]


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "checkpoints", keep=2, identity=IDENTITY)


def test_all_is_there_in_the_end(folder):
    saver = Saver(folder)
    for step in range(1, 6):
        saver.save(weights(step), progress(step))
        saver.save(weights(step), progress(step), selected=True)
    saver.finish()
    assert names(folder) == [SELECTED, "step-000000004.safetensors", "step-000000005.safetensors"]
    assert saver.saved_bytes > 10 * 500


def test_a_failure_is_raised_by_the_next_call(folder):
    saver = Saver(folder)
    folder.path.write_text("in the way")
    saver.save(weights(1), progress(1))
    with pytest.raises(StorageError, match="a component of the path is a file"):
        saver.save(weights(2), progress(2))
    saver.save(weights(3), progress(3))
    with pytest.raises(StorageError):
        saver.wait()
    folder.path.unlink()
    saver.save(weights(4), progress(4))
    saver.wait()
    assert names(folder) == ["step-000000004.safetensors"]


def test_a_slow_disk_does_not_stop_the_training(folder, monkeypatch):
    """Its steps continue while a file is written; then the newest of each kind is, the selected generator first."""
    monkeypatch.setattr(saver_module, "LONGEST_WAIT_SECONDS", 0.01)
    write, written, begun, is_free = CheckpointFolder.write, [], threading.Event(), threading.Event()

    def slowly(folder, arrays, progress, *, selected=False):
        begun.set()
        is_free.wait(600)
        written.append((progress.step, selected))
        return write(folder, arrays, progress, selected=selected)

    monkeypatch.setattr(CheckpointFolder, "write", slowly)
    saver = Saver(folder)
    saver.save(weights(1), progress(1))
    begun.wait(600)
    for step in (2, 3):
        saver.save(weights(step), progress(step), selected=True)
        saver.save(weights(step), progress(step))
    assert not written
    is_free.set()
    saver.finish()
    assert written == [(1, False), (3, True), (3, False)]


class _Broken(BucketCopy):
    """A defect: an error that nobody foresaw."""

    def upload(self, path, content):
        raise ZeroDivisionError(path.name)


@pytest.mark.parametrize("call", ["save", "check", "finish"])
def test_an_unforeseen_error_of_the_copying_thread_is_raised_by_the_next_call(folder, call):
    saver = Saver(folder, _Broken("gs://showers/broken", keep=2))
    saver.save(weights(1), progress(1))
    saver._thread.join()
    saver._copies.thread.join(600)
    assert not saver._copies.thread.is_alive()
    with pytest.raises(ZeroDivisionError, match="step-000000001"):
        saver.save(weights(2), progress(2)) if call == "save" else getattr(saver, call)()


def away(request):
    raise UnreachableError(f"no answer to {request}")


def fetched(tmp_path):
    other = CheckpointFolder(tmp_path / "elsewhere", keep=2, identity=IDENTITY)
    BucketCopy(URI, keep=2).fetch(other)
    return other.newest()


def test_a_bucket_that_is_away_for_a_while_does_not_stop_the_training(folder, bucket, tmp_path, caplog, monkeypatch):
    """Lost: nothing; what was saved meanwhile gets there afterwards."""
    monkeypatch.setattr(saver_module, "PAUSE_SECONDS", 0.01)
    saver = Saver(folder, BucketCopy(URI, keep=2))
    saver.save(weights(1), progress(1))
    saver.finish()
    bucket.before = away
    with caplog.at_level(logging.WARNING):
        for step in range(2, 6):
            saver.save(weights(step), progress(step))
        saver.wait()
        assert folder.newest().progress.step == 5
        with pytest.raises(UnreachableError, match=f"{URI}: the last checkpoint was not uploaded") as error:
            saver.finish(0.2)
        assert "is on this machine" in error.value.remedy
    assert caplog.text.count("the training continues") > 2
    bucket.before = lambda request: "none" if request == "get" else away(request)
    assert fetched(tmp_path).progress.step == 1, "the last good one stays usable"
    bucket.before = lambda _: "none"
    saver.finish()
    assert fetched(tmp_path).progress.step == 5


def test_a_training_that_has_ended_waits_for_a_slow_bucket(folder, bucket, tmp_path, monkeypatch):
    """It would be started again, and fail again after the same time; one that is stopped has no time."""
    monkeypatch.setattr(saver_module, "FINAL_SECONDS", 0.01)
    answers = threading.Event()
    bucket.before = lambda _: answers.wait(600) and "none"
    saver = Saver(folder, BucketCopy(URI, keep=2))
    saver.save(weights(1), progress(1))
    with pytest.raises(UnreachableError, match="no answer yet"):
        saver.finish(0.01)
    threading.Timer(0.2, answers.set).start()
    saver.finish()
    assert fetched(tmp_path).progress.step == 1


def test_what_a_bucket_holds_must_be_known_at_the_start(bucket, tmp_path, monkeypatch):
    retried = []
    locate = lambda uri, retry_seconds=None: retried.append(retry_seconds) or (bucket, uri)  # noqa: E731
    monkeypatch.setattr(objects, "locate", locate)
    bucket.before = away
    with pytest.raises(UnreachableError):
        fetched(tmp_path)
    assert retried == [START_RETRY_SECONDS]
