"""Two processes and one bucket: who writes the checkpoints, and that the other changes nothing."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloscale.errors import ChangedError, HeldError, ShowerFileError, SupersededError, UnreachableError
from caloscale.storage import objects
from caloscale.storage.atomic import machine
from caloscale.storage.store import NO_VERSION
from caloscale.training import trainer
from caloscale.training.checkpoint import store as module
from caloscale.training.checkpoint.store import POINTER, BucketCopy, Holder, Pointer, this_process
from caloscale.training.loop import train
from tests.training.conftest import small_run
from tests.training.quick_networks import QUICK

URI = "gs://bucket/run"
FAULTS = ("none", "none", "none", "answer lost", "no answer", "not carried out")
"""What happens to a write; with a lost answer the client repeats it, and meets its own version."""


class Bucket:
    """A bucket whose versions are hashes of the content, as S3's are: equal contents have equal versions.

    ``before``: called before each request, with its name.
    """

    def __init__(self, before: Callable[[str], str] = lambda _: "none") -> None:
        self.content: dict[str, bytes] = {}
        self.before = before

    def version(self, name: str) -> str:
        return hashlib.sha256(self.content[name]).hexdigest() if name in self.content else NO_VERSION

    def get(self, name: str) -> bytes | None:
        self.before("get")
        return self.content.get(name)

    def get_version(self, name: str) -> tuple[bytes | None, str]:
        self.before("get")
        return self.content.get(name), self.version(name)

    def list(self, prefix: str) -> list[objects.StoredObject]:
        self.before("list")
        return [objects.StoredObject(name, 1) for name in sorted(self.content) if name.startswith(prefix)]

    def delete(self, name: str) -> None:
        self.before("delete")
        self.content.pop(name, None)

    def put(self, name: str, content: bytes) -> None:
        self._write(name, content, None)

    def put_version(self, name: str, content: bytes, version: str) -> str:
        return self._write(name, content, version)

    def _write(self, name: str, content: bytes, version: str | None) -> str:
        fault = self.before("put")
        if fault == "not carried out":
            raise UnreachableError("away")
        if version not in (None, self.version(name)):
            raise ChangedError("another version")
        self.content[name] = content
        if fault == "no answer":
            raise UnreachableError("away")
        if fault == "answer lost" and version is not None:
            raise ChangedError("another version")
        return self.version(name)

    @property
    def pointer(self) -> Pointer:
        return Pointer.model_validate_json(self.content[f"run/{POINTER}"])


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    made = Bucket()
    monkeypatch.setattr(objects, "locate", lambda uri, **_: (made, uri.removeprefix("gs://bucket/")))
    return made


def holder(token: str, **more: object) -> Holder:
    return Holder.model_validate({"token": token * 8, "machine": "m", "host": "far", "process": 7, **more})


class Writer:
    """An attempt that claims, then saves; what a training does about errors."""

    def __init__(self, attempt: int, files: list[str]) -> None:
        self.copy = BucketCopy(URI, keep=2, holder=holder(str(attempt), run="uid", attempt=attempt))
        self.files, self.attempt, self.number = files, attempt, 0
        self.claimed, self.superseded = False, False
        self.saved: dict[str, bytes] = {}

    def step(self) -> None:
        """The next thing that it does, once more if the bucket did not answer."""
        if self.superseded:
            return
        try:
            if not self.claimed:
                self.copy.claim()
                self.claimed = True
            elif self.files:
                content = f"attempt {self.attempt}, save {self.number}".encode()
                self.copy.upload(Path(self.files[0]), content)
                self.saved[self.files.pop(0)] = content
                self.number += 1
            else:
                self.copy._point({})
        except (ChangedError, UnreachableError):
            return
        except SupersededError:
            self.superseded = True


FILES = st.lists(
    st.sampled_from([*(f"step-00000000{n}.safetensors" for n in range(1, 6)), "selected.safetensors"]), max_size=5
)


@given(st.data(), FILES, FILES)
def test_no_checkpoint_of_the_newer_attempt_is_lost_or_mixed(data: st.DataObject, first: list, second: list) -> None:
    """The earlier attempt runs on, on a node that was cut off; at any request the other one may do its next thing."""
    attempts = {1: Writer(1, first), 2: Writer(2, second)}
    running: list[int] = []

    def before(request: str) -> str:
        if len(running) == 1 and data.draw(st.booleans()):
            go(3 - running[0])
        return data.draw(st.sampled_from(FAULTS)) if request == "put" else "none"

    def go(number: int) -> None:
        running.append(number)
        attempts[number].step()
        running.pop()

    bucket = Bucket(before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "locate", lambda uri, **_: (bucket, uri.removeprefix("gs://bucket/")))
        go(1)
        for number in data.draw(st.lists(st.sampled_from([1, 2]), max_size=12)):
            go(number)
        bucket.before = lambda _: "none"
        newer = attempts[2]
        while newer.files or not newer.claimed:
            newer.step()
        attempts[1].step()
        attempts[1].step()
    assert not newer.superseded and attempts[1].superseded
    pointer = bucket.pointer
    assert pointer.holder is not None and pointer.holder.attempt == 2
    listed = list(pointer.checkpoints)
    for entry in (*listed, *filter(None, [pointer.selected])):
        content = bucket.content[f"run/{entry.name}"]
        assert hashlib.sha256(content).hexdigest() == entry.sha256, "what is pointed to is there, and whole"
    steps = [entry.file for entry in listed]
    assert steps == sorted(set(steps), reverse=True) and len(steps) <= 2
    of_newer = [entry.name[15:].startswith("22222222") for entry in listed]
    assert of_newer == sorted(of_newer, reverse=True), "those of the newer attempt come first"
    saves = [file for file in newer.saved if file.startswith("step")]
    if saves:
        last = max(saves, key=lambda file: int(newer.saved[file].rpartition(b" ")[2]))
        assert bucket.content[f"run/{listed[0].name}"] == newer.saved[last] and listed[0].file == last
    if chosen := newer.saved.get("selected.safetensors"):
        assert pointer.selected is not None and bucket.content[f"run/{pointer.selected.name}"] == chosen


def claimed(uri: str = URI, **options: object) -> BucketCopy:
    copy = BucketCopy(uri, keep=2, **options)  # type: ignore[arg-type]
    copy.claim()
    return copy


def test_a_process_that_gives_signs_is_not_replaced(bucket: Bucket) -> None:
    """Case two-trainings-one-folder in a bucket; it says who is at work."""
    first = claimed(holder=holder("a"))
    before = bucket.pointer
    with pytest.raises(HeldError, match="process 7 on far is at work here") as error:
        claimed(holder=holder("b"), wait=lambda _: first._point({}))
    assert error.value.exit_code == 2 and bucket.pointer.holder == before.holder
    first.release()
    assert claimed(holder=holder("b"), wait=pytest.fail).holder == bucket.pointer.holder


def test_one_that_gave_none_for_long_is_replaced_and_stops(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXPIRY_SECONDS", 0.0)
    first = claimed(holder=holder("a"))
    first.upload(Path("step-000000001.safetensors"), b"one")
    bucket.content[f"run/step-000000002-{'a' * 16}.safetensors"] = b"not pointed to"
    second = claimed(holder=holder("b"))
    assert len(bucket.content) == 2, "what the first had not finished is gone"
    with pytest.raises(SupersededError, match="process 7 on far has taken over") as error:
        first.upload(Path("step-000000009.safetensors"), b"nine")
    assert error.value.exit_code == 145
    for again in (first.check, first.claim, lambda: first._point({})):
        with pytest.raises(SupersededError):
            again()
    first.release()
    second.upload(Path("step-000000002.safetensors"), b"two")
    assert [each.file[5:14] for each in bucket.pointer.checkpoints] == ["000000002", "000000001"]


@pytest.mark.usefixtures("quickly")
def test_a_training_that_cannot_begin_leaves_the_bucket(
    bucket: Bucket, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process may stay, as that of a notebook, and would give signs for as long."""
    refused = ShowerFileError("too few")
    monkeypatch.setattr(trainer, "adapt", lambda *_: (_ for _ in ()).throw(refused))
    with pytest.raises(ShowerFileError, match="too few"):
        train(small_run(*QUICK, f"checkpoint.uri={URI}"), shards, tmp_path)
    assert bucket.pointer.holder is None


@pytest.mark.parametrize("process", [os.getpid(), 2**22 + 1], ids=["this process", "none"])
def test_a_process_of_this_machine_that_has_ended_is_replaced_at_once(bucket: Bucket, process: int) -> None:
    claimed(holder=holder("a", machine=machine(), process=process))
    assert claimed(wait=pytest.fail).holder == bucket.pointer.holder


def test_an_attempt_replaces_an_earlier_one_of_its_run_alone(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started again by the operator, or as the same attempt by Kubeflow; the node of the earlier one was cut off."""
    for attempt in (1, 2, 2):
        found = this_process({"CALOSCALE_ATTEMPT": f"u-1/{attempt}"}).model_copy(update={"machine": "m"})
        claimed(holder=found, wait=pytest.fail)
    before = bucket.pointer
    with pytest.raises(SupersededError, match=r"attempt 2\) has taken over"):
        claimed(holder=holder("a", run="u-1", attempt=1))
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    with pytest.raises(ZeroDivisionError):
        claimed(holder=holder("a", run="u-2", attempt=3), wait=lambda seconds: 1 / seconds)
    assert bucket.pointer == before


@pytest.mark.parametrize("kind", ["bucket_server", "s3_server"])
def test_a_bucket_of_a_real_server_has_versions(request: pytest.FixtureRequest, kind: str) -> None:
    bucket_server = request.getfixturevalue(kind)
    store, name = objects.bucket_of(f"{bucket_server}/fencing/{POINTER}")
    assert store.get_version(name) == (None, NO_VERSION)
    first = store.put_version(name, b"1", NO_VERSION)
    other = store.put_version(f"{name}-other", b"2", NO_VERSION)
    for wrong in (NO_VERSION, other):
        with pytest.raises(ChangedError):
            store.put_version(name, b"2", wrong)
    assert store.get_version(name) == (b"1", first)
    second = store.put_version(name, b"3", first)
    assert store.get_version(name) == (b"3", second) and second != first
    uri = f"{bucket_server}/fenced"
    older, newer = (claimed(uri, holder=holder(str(n), run="u", attempt=n)) for n in (1, 2))
    newer.upload(Path("step-000000001.safetensors"), b"newer")
    with pytest.raises(SupersededError):
        older.upload(Path("step-000000001.safetensors"), b"older")
    (entry,) = newer._look()[0].checkpoints
    assert objects.read_object(f"{uri}/{entry.name}") == b"newer"
