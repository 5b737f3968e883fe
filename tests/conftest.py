"""Settings of all tests."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# Examples are the same in every run, and no test fails because a machine is busy.
settings.register_profile(
    "caloscale", deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("caloscale")
