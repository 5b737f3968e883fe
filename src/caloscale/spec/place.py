"""Paths and addresses of buckets that a person writes."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

from caloscale.errors import InvalidValueError

_ADDRESS = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*):(?:/|$)")


def check_place(place: str, *, bucket: bool = True) -> str:
    """A path of this machine or, with ``bucket``, gs://bucket/prefix; raises InvalidValueError for anything else.

    Any other address, such as s3://bucket, would be the path of a folder ``s3:``. ``./s3:/x`` is such a path.
    """
    found = _ADDRESS.match(place)
    known = "the path of a folder or file" + (", or gs://bucket/prefix" if bucket else " of this machine")
    if found is None:
        if not place.strip() or "\0" in place:
            raise InvalidValueError("is no path", remedy=f"write {known}")
        return place
    if not bucket or not re.match(r"gs://[^/\s]", place):
        raise InvalidValueError(
            f"is no address of a bucket that works here: {found[1]}://"
            if place == place.strip()
            else "has a blank before it",
            remedy=f"write {known}; a path that looks like an address begins with ./",
        )
    return place


Place = Annotated[str, AfterValidator(check_place)]
"""A path, or gs://bucket/prefix."""
