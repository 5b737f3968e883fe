"""The steps of the pipelines: each parses, calls one function of caloscale.stages, and writes artifacts."""

import os

IMAGE = os.environ.get("CALOSCALE_IMAGE", "caloscale/trainer:0.1.0")
"""Image of the steps in a cluster; set CALOSCALE_IMAGE when compiling to use another."""
