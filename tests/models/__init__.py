"""Tests of the networks and of their faster forms."""

import pytest

from caloscale.models.layers.convolution import has_bfloat16

HAS_BFLOAT16 = has_bfloat16()
needs_bfloat16 = pytest.mark.skipif(not HAS_BFLOAT16, reason="sums of products of bfloat16 would be wrong here")
