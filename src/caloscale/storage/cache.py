"""Where results are kept that another run may need."""

import errno
import os
from collections.abc import Mapping
from pathlib import Path

import platformdirs

from caloscale.errors import StorageError
from caloscale.storage.atomic import make_folder, storage_error

VARIABLE = "CALOSCALE_CACHE"
"""Environment variable with the path of the cache."""


def cache_root(environment: Mapping[str, str] = os.environ) -> Path:
    """$CALOSCALE_CACHE, or the user's cache folder."""
    return Path(environment.get(VARIABLE) or platformdirs.user_cache_dir("caloscale"))


def writable_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """The same folder, made; StorageError where it cannot be written, or is an address."""
    folder = cache_root(environment)
    try:
        if not os.access(make_folder(folder), os.W_OK):
            raise storage_error(PermissionError(errno.EACCES, ""), folder)
    except StorageError as error:
        error.field, error.value = VARIABLE, environment.get(VARIABLE)
        error.problem = f"the cache {error.problem}"
        error.remedy = f"let {VARIABLE} name a folder that you may write to"
        raise
    return folder
