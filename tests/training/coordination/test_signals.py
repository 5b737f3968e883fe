"""Real signals to real processes, between steps and within steps that do not end."""

import signal
from pathlib import Path

import pytest

from caloscale.cluster.workload.pod_template import RUN_VARIABLE, pod_template
from caloscale.spec import parse_run
from caloscale.training.coordination import signals
from tests.cluster import examples as ex
from tests.processes import wait_for
from tests.training.processes import start_python

TRAINING = """
import time
from caloscale.training.coordination import signals
signals.EXIT_SECONDS, signals.SECOND_SECONDS = 0, 0.3
with signals.StopSignals({grace}) as stop:
    {defer}
    print("ready", flush=True)
    {step}
    print("saved", flush=True)
    stop.check()
"""
STEP = "while stop.received is None: time.sleep(0.01)"
# Like calls into TensorFlow: Python runs only between them.
ENDLESS = "import ctypes; libc = ctypes.CDLL(None); [libc.usleep(400_000) for _ in iter(int, 1)]"
# One call that no signal ends.
STUCK = (
    "import ctypes; mutex = (ctypes.c_byte * 64)(); lock = ctypes.CDLL(None).pthread_mutex_lock; "
    "lock(mutex); print('stuck', flush=True); lock(mutex)"
)


def run(*numbers, step=STEP, defer="stop.defer()", grace=1000):
    process = start_python(TRAINING.format(step=step, defer=defer, grace=grace))
    assert process.stdout.readline() == "ready\n"
    if step == STUCK:
        assert process.stdout.readline() == "stuck\n"
        wait_for(lambda: fields(process.pid)["State"].startswith("S"), process)
    for before, number in enumerate(numbers):
        # A second signal is one only when the first was taken: by Python, or, where that is stuck, by the kernel.
        if before and step == STUCK:
            wait_for(lambda: int(fields(process.pid)["ShdPnd"], 16) == 0, process)
        elif before:
            assert "stopping at the end of this step" in process.stderr.readline()
        process.send_signal(number)
    out, err = ended(process)
    return process.returncode, "saved" in out, err


def ended(process):
    """What a process wrote that ends by itself."""
    try:
        return process.communicate()
    finally:
        process.kill()


def fields(pid):
    """What the kernel says of a process."""
    return dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_the_step_ends_and_is_saved(number, code):
    """Lost: nothing. (Python itself turns a KeyboardInterrupt into death by SIGINT; the command line makes it 130.)"""
    found, saved, err = run(number)
    assert (found, saved) == (code, True), err
    assert "stopping at the end of this step" in err


@pytest.mark.parametrize("step", [ENDLESS, STUCK])
def test_a_step_that_does_not_end_is_given_up(step):
    """Lost: the steps since the last checkpoint."""
    assert run(signal.SIGTERM, step=step, grace=0.3)[:2] == (143, False)


@pytest.mark.parametrize("grace", [30, 60, 600])
def test_the_grace_period_of_the_pod_is_that_of_the_worker(grace):
    """The kubelet kills what has not ended by then; the worker ends a step before."""
    run = ex.run_of(
        "hardware.accelerator=nvidia-tesla-v100", "hardware.count=8", f"cluster.terminationGracePeriodSeconds={grace}"
    )
    launch = ex.launch_of(run, ex.node("n0", "X"))
    spec = pod_template(launch)["spec"]
    variables = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
    worker = signals.StopSignals(parse_run(variables[RUN_VARIABLE]).cluster.termination_grace_period_seconds)
    assert spec["terminationGracePeriodSeconds"] == grace
    assert grace - 5 <= worker.limit_seconds < grace


MISSED = """
import queue, signal, socket, threading, time
from caloscale.training.coordination import signals
with signals.StopSignals(1000) as stop:
    # The kernel gives the signal to another thread: that of Python is not woken.
    signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM, signal.SIGINT}})
    try:
        print("ready", flush=True)
        {wait}
    finally:
        print("cleaned", flush=True)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize(
    "wait",
    [
        "time.sleep(1000)",
        "queue.SimpleQueue().get()",
        "threading.Event().wait()",
        "socket.create_server(('127.0.0.1', 0)).accept()",
    ],
)
def test_a_signal_between_a_check_and_a_wait_is_noticed(wait, number, code):
    """As when it arrives after Python's last look at its signals and before the call sleeps.

    (130: Python would end itself by SIGINT, which its main thread does not take here.)
    """
    process = start_python(MISSED.format(wait=wait))
    assert process.stdout.readline() == "ready\n"
    wait_for(lambda: fields(process.pid)["State"].startswith("S"), process)
    process.send_signal(number)
    out, err = ended(process)
    assert (process.returncode, out) == (code, "cleaned\n"), err


@pytest.mark.parametrize("grace", [30, 600])
def test_what_is_left_of_the_grace_period(grace):
    code = (
        "import signal, os\nfrom caloscale.training.coordination.signals import StopSignals\n"
        f"with StopSignals({grace}) as stop:\n"
        "    stop.defer()\n"
        "    print(stop.wait(0), stop.seconds_left(7.0), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print(stop.wait(1000), stop.seconds_left(7.0), flush=True)\n"
    )
    process = start_python(code)
    before, after = (line.split() for line in ended(process)[0].splitlines())
    assert before == ["False", "7.0"]
    assert after[0] == "True" and 7.0 < float(after[1]) <= grace - 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_before_the_first_step_it_acts_at_once(number, code):
    assert run(number, defer="", step="time.sleep(60)")[:2] == (code, False)


@pytest.mark.parametrize(("step", "code"), [("time.sleep(60)", -signal.SIGINT), (STUCK, 130)])
def test_a_second_interrupt_does_not_wait(step, code):
    assert run(signal.SIGINT, signal.SIGINT, step=step)[:2] == (code, False)


def test_handlers_are_restored():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with signals.StopSignals(30) as stop:
        assert signal.getsignal(signal.SIGTERM) == stop._handle
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert signal.set_wakeup_fd(-1) == -1
