"""The steps of the pipelines: each parses, calls one function of caloscale.stages, and writes artifacts."""

import os

import caloscale

IMAGE = os.environ.get("CALOSCALE_IMAGE", caloscale.IMAGE)
"""Image of the steps in a cluster; set CALOSCALE_IMAGE when compiling to use another."""
