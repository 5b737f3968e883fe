"""Tests of the networks and of their faster forms."""

from __future__ import annotations

from pathlib import Path

import pytest

CPUINFO = Path("/proc/cpuinfo")
HAS_BFLOAT16 = not CPUINFO.is_file() or bool({"avx512_bf16", "amx_bf16"} & set(CPUINFO.read_text().split()))
"""Without these instructions TensorFlow adds up in bfloat16: sums of a thousand products are wrong by 4%."""
needs_bfloat16 = pytest.mark.skipif(not HAS_BFLOAT16, reason="the processor has no instructions for bfloat16")
