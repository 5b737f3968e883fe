"""Errors carry problem, place and remedy as fields, and show them in one layout."""

import pickle

import pytest

from caloscale import errors
from caloscale.errors import CaloscaleError, ConfigurationError, InvalidValueError, PeerLostError
from caloscale.models import build
from caloscale.spec import Data, Model
from caloscale.spec.values import seconds_of

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, CaloscaleError) and kind.__init__ is CaloscaleError.__init__
]


def _is_class_of_errors(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, CaloscaleError) and kind is not CaloscaleError


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_carries_its_fields_also_to_another_process(kind: type[CaloscaleError]) -> None:
    made = kind("is too small", file="run.yaml", field="train.epochs", value=0, remedy="write 1")
    for error in (made, pickle.loads(pickle.dumps(made))):
        assert (error.problem, error.file, error.field, error.value, error.remedy) == (
            "is too small",
            "run.yaml",
            "train.epochs",
            0,
            "write 1",
        )
        assert str(error) == "run.yaml: train.epochs: is too small (got 0)\n  remedy: write 1"
        assert error.sentence == "train.epochs is too small; remedy: write 1"


@pytest.mark.parametrize("kind", [kind for kind in vars(errors).values() if _is_class_of_errors(kind)])
def test_the_docstring_of_every_class_has_the_usual_remedy(kind: type[CaloscaleError]) -> None:
    """The page Errors and exit codes is made of them."""
    meaning, _, remedy = (kind.__doc__ or "").partition("Remedy: ")
    assert meaning.strip().endswith(".") and remedy.strip().endswith(".")


def test_what_is_not_given_is_not_shown() -> None:
    assert str(CaloscaleError("no cluster")) == "no cluster"
    lost = PeerLostError(3, "is silent")
    assert lost.problem == "worker 3 is silent; this one cannot continue alone" and "start all workers" in (
        lost.remedy or ""
    )


def test_a_remedy_may_contain_any_text() -> None:
    """Fields are not cut out of a message: a problem that quotes a remedy stays whole."""
    quoted = CaloscaleError("the log says 'x; remedy: y'", remedy="read on")
    assert quoted.problem == "the log says 'x; remedy: y'" and quoted.remedy == "read on"


def test_a_check_of_a_value_gives_its_remedy_to_the_error_with_the_file() -> None:
    with pytest.raises(InvalidValueError) as refused:
        seconds_of("soon")
    assert refused.value.remedy == "write it as 90s, 10m, 6h, 1h30m or 2d" and "remedy" not in str(refused.value)
    with pytest.raises(ConfigurationError) as placed:
        build(Model(preset="fixed-angle"), Data(showers=1))
    assert placed.value.field == "model" and "cells to [25, 25, 25]" in (placed.value.remedy or "")
