"""Durations, paths and addresses of buckets as people write them."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

from caloscale.errors import InvalidValueError, shorten

PATTERN = r"^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$"
"""Days, hours, minutes, seconds, in this order; all may be absent, but not all of them at once."""
_SECONDS = (86_400, 3_600, 60, 1)
_LONGEST = 24
MOST_DAYS = 3650
"""Ten years: no run takes as long, and moments that are so far away still have a date."""


def seconds_of(duration: str) -> float:
    """Seconds of a duration such as ``6h``, ``1h30m`` or ``90s``; raises ValueError for anything else."""
    match = re.fullmatch(PATTERN, duration) if len(duration) <= _LONGEST else None
    total = sum(int(part[:-1]) * s for part, s in zip(match.groups(default="0d"), _SECONDS)) if match else 0
    if not total:
        remedy = "write it as 90s, 10m, 6h, 1h30m or 2d"
        raise InvalidValueError(f"{shorten(duration)} is not a duration", remedy=remedy)
    if total > MOST_DAYS * _SECONDS[0]:
        raise InvalidValueError(f"{duration!r} is longer than ten years", remedy=f"write {MOST_DAYS}d or less")
    return total


def _check(duration: str) -> str:
    seconds_of(duration)
    return duration


Duration = Annotated[
    str, AfterValidator(_check), WithJsonSchema({"type": "string", "pattern": PATTERN, "maxLength": _LONGEST})
]
"""A positive length of time: days, hours, minutes, seconds in this order, such as 6h or 1h30m; ten years at most."""
Seed = Annotated[int, Field(ge=0, le=2**53 - 1)]
"""The seed of random numbers: at most the largest number that an API server, which reads bounds as floating-point
numbers, keeps exactly."""
Seed32 = Annotated[int, Field(ge=0, le=2**32 - 1)]
"""A seed that Keras or scikit-learn is given, too: they take 32 bits."""

BUCKETS = ("gs://", "s3://", "minio://")
"""How addresses of buckets begin: Google Cloud Storage, the API of S3, and the same of a Kubeflow installation."""
_BLANK = r"\t-\r\x1c-\x20\x85\xa0"
_WORD, _END = r"[A-Za-z0-9_]+", r"(?:[/\n]|$)"
BUCKET_PATTERN = rf"^(?:{'|'.join(BUCKETS)})[^/{_BLANK}]"
"""How the address of a bucket begins."""
NO_PATH_PATTERN = (
    rf"^[{_BLANK}]*(?:$|(~|\${_WORD}|\$\{{{_WORD}\}}){_END}|([A-Za-z][A-Za-z0-9+.-]*):{_END}"
    r"|([Gg][Ss]|[Gg][Cc][Ss]|[Ss]3[Aa]?|[Mm][Ii][Nn][Ii][Oo]):)|\x00"
)
"""What no path is: blank, with a name that only a shell replaces, an address of whatever kind, or with NUL. Written as
Python, JSON schemas and the API server (RE2) read it alike."""


def check_place(place: str, *, bucket: bool = True) -> str:
    """A path of this machine or, with ``bucket``, an address of a bucket such as gs://bucket/prefix; raises
    InvalidValueError for anything else.

    Any other address, such as az://bucket, would be the path of a folder ``az:``. ``/home/me/az:/x`` is such a path.
    ~ and $HOME at the beginning, which only a shell replaces, would be names of folders, too.
    """
    refused = re.search(NO_PATH_PATTERN, place)
    if refused is None or (bucket and re.search(BUCKET_PATTERN, place)):
        return place
    of_bucket = ", or gs://bucket/prefix (also s3:// and minio://)"
    known = f"the path of a folder or file{of_bucket if bucket else ' of this machine'}"
    if refused[1]:
        remedy = f"write {known}, in full"
        raise InvalidValueError(f"begins with {refused[1]}, which is not replaced here", remedy=remedy)
    if scheme := refused[2] or refused[3]:
        problem = f"is no address of a bucket that works here: {scheme}://"
        remedy = f"write {known}; a path that looks like an address is written in full, from /"
        raise InvalidValueError(problem if place == place.strip() else "has a blank before it", remedy=remedy)
    raise InvalidValueError("is no path", remedy=f"write {known}")


_LONGEST_PLACE = 1024
_NO_PLACE = {"pattern": NO_PATH_PATTERN, "not": {"pattern": BUCKET_PATTERN}}
Place = Annotated[
    str,
    Field(max_length=_LONGEST_PLACE),
    AfterValidator(check_place),
    WithJsonSchema({"type": "string", "maxLength": _LONGEST_PLACE, "not": _NO_PLACE}),
]
"""A path, or gs://bucket/prefix (also s3:// and minio://)."""
