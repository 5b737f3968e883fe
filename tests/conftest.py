"""Settings of all tests."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# A shell that starts the tests in the background has them ignore Ctrl-C, and programs they start inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# Examples are the same in every run, and no test fails because a machine is busy.
settings.register_profile(
    "caloscale", deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("caloscale")
