"""Real signals to real processes, between steps and within steps that do not end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from caloscale.training.coordination import signals
from tests.training.processes import start_python, wait_for

TRAINING = """
import time
from caloscale.training.coordination import signals
signals.GRACE_SECONDS, signals.SECOND_SECONDS = {grace}, 0.3
with signals.StopSignals() as stop:
    {defer}
    print("ready", flush=True)
    {step}
    print("saved", flush=True)
    stop.act()
"""
STEP = "while stop.received is None: time.sleep(0.01)"
# Like calls into TensorFlow: Python runs only between them.
ENDLESS = "import ctypes; libc = ctypes.CDLL(None); [libc.usleep(400_000) for _ in iter(int, 1)]"
# One call that no signal ends.
STUCK = (
    "import ctypes; mutex = (ctypes.c_byte * 64)(); lock = ctypes.CDLL(None).pthread_mutex_lock; "
    "lock(mutex); print('stuck', flush=True); lock(mutex)"
)


def run(*numbers, step=STEP, defer="stop.defer()", grace=30):
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
    out, err = process.communicate(timeout=60)
    return process.returncode, "saved" in out, err


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


def test_the_default_leaves_time_before_the_machine_is_gone():
    assert 10 <= signals.GRACE_SECONDS < 15


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_before_the_first_step_it_acts_at_once(number, code):
    assert run(number, defer="", step="time.sleep(60)")[:2] == (code, False)


@pytest.mark.parametrize(("step", "code"), [("time.sleep(60)", -signal.SIGINT), (STUCK, 130)])
def test_a_second_interrupt_does_not_wait(step, code):
    assert run(signal.SIGINT, signal.SIGINT, step=step)[:2] == (code, False)


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with signals.StopSignals() as stop:
        assert signal.getsignal(signal.SIGTERM) == stop._handle
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert signal.set_wakeup_fd(-1) == -1
