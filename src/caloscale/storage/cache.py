"""Where results are kept that another run may need."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import platformdirs


def cache_root(environment: Mapping[str, str] = os.environ) -> Path:
    """$CALOSCALE_CACHE, or the user's cache folder."""
    return Path(environment.get("CALOSCALE_CACHE") or platformdirs.user_cache_dir("caloscale"))
