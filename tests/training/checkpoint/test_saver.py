"""Saving in the background: order, failures, and a real bucket that is away for a while."""

import logging
import os
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from caloscale.errors import StorageError
from caloscale.storage import answers
from caloscale.training.checkpoint import saver as saver_module
from caloscale.training.checkpoint.saver import Saver
from caloscale.training.checkpoint.store import SELECTED, BucketCopy, CheckpointFolder

from .test_store import IDENTITY, names, progress, weights


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "checkpoints", keep=2, identity=IDENTITY)


def test_all_is_there_in_the_end(folder):
    saver = Saver(folder)
    for step in range(1, 6):
        saver.save(weights(step), progress(step))
        saver.save_selected(weights(step), progress(step))
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


EVERYTHING = frozenset({"GET", "POST", "PUT", "DELETE"})


class _Door(BaseHTTPRequestHandler):
    """Passes requests on to a server, or answers 503."""

    behind = ""
    shut: ClassVar[frozenset[str]] = frozenset()
    """Methods that are answered with 503."""
    refused = 0

    def _pass(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command in self.shut:
            type(self).refused += 1
            return self._answer(503, {}, b"{}")
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        request = urllib.request.Request(self.behind + self.path, body or None, headers, method=self.command)
        try:
            with urllib.request.urlopen(request) as answer:
                return self._answer(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return self._answer(error.code, error.headers, error.read())

    do_GET = do_POST = do_PUT = do_DELETE = _pass

    def _answer(self, status, headers, body):
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Stay quiet."""


@pytest.fixture
def door(bucket_server, monkeypatch):
    """A server before the bucket's that can be shut: then it answers 503."""
    handler = type("Door", (_Door,), {"behind": os.environ["STORAGE_EMULATOR_HOST"], "refused": 0})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(answers, "RETRY_SECONDS", 0.5)
    monkeypatch.setattr(saver_module, "PAUSE_SECONDS", 0.1)
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


def fetched(uri, tmp_path):
    other = CheckpointFolder(tmp_path / "elsewhere", keep=2, identity=IDENTITY)
    BucketCopy(uri, keep=2).fetch(other)
    return other.newest()


def test_a_bucket_that_is_away_for_a_while_does_not_stop_the_training(folder, bucket_server, door, tmp_path, caplog):
    """Lost: nothing; what was saved meanwhile gets there afterwards."""
    uri = f"{bucket_server}/away"
    saver = Saver(folder, BucketCopy(uri, keep=2))
    saver.save(weights(1), progress(1))
    saver.finish()
    door.shut = EVERYTHING
    with caplog.at_level(logging.WARNING):
        for step in range(2, 6):
            saver.save(weights(step), progress(step))
        saver.wait()
        assert folder.newest().progress.step == 5
        with pytest.raises(StorageError, match=r"gs://showers/away: the last checkpoint was not uploaded") as error:
            saver.finish(2)
        assert "is on this machine" in error.value.remedy
    assert door.refused > 2
    assert "the training continues" in caplog.text
    door.shut = EVERYTHING - {"GET"}  # what is still tried again must not get there before one looks
    assert fetched(uri, tmp_path).progress.step == 1, "the last good one stays usable"
    door.shut = frozenset()
    saver.finish()
    assert fetched(uri, tmp_path).progress.step == 5


def test_what_a_bucket_holds_must_be_known_at_the_start(folder, bucket_server, door, tmp_path, monkeypatch):
    monkeypatch.setattr("caloscale.training.checkpoint.store.START_RETRY_SECONDS", 1.0)
    door.shut = EVERYTHING
    with pytest.raises(StorageError, match=r"newest.json: the server .* does not serve it"):
        fetched(f"{bucket_server}/away", tmp_path)
    assert door.refused > 1
