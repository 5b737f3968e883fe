"""The last value that each check takes and the first that it refuses; arithmetic of the blocks; what a remedy says."""

import datetime as dt
import re
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter, ValidationError, field_validator

from caloscale.errors import ConfigurationError, InvalidValueError
from caloscale.spec import PRESETS, Budget, Data, Hardware, Model, Preprocessing, Train, load_run
from caloscale.spec.block import Block
from caloscale.spec.budget import USD_PATTERN
from caloscale.spec.cluster import Checkpoint, Recovery
from caloscale.spec.problem import Problem, list_problems, suggest
from caloscale.spec.solver import DataSet, Solver, SolverRun
from caloscale.spec.values import Place, check_place, seconds_of

GEOMETRY = {"cells": [10, 20, 25], "cellMm": 4}
"""Window of 40 mm along x and 80 mm along y."""
GRID = {"showers": 9, "geometry": GEOMETRY, "angleDeg": [60, 120], "simulation": {"engine": "geant4"}}
CYLINDER = {"showers": 9, "geometry": {**GEOMETRY, "cellShape": "cylinder"}, "angleDeg": [90, 90]}
SLICE = {"accelerator": "tpu-v3", "topology": "2x4x3"}
BAYESIAN = {"optimizer": "bayesian", "objective": "likelihood"}
DRAWN = {"ecalSumFit": [1.0], "primaries": "uniform"}
LINEAR = {"learningRateScaling": "linear", "ranks": 2}
RANKS = {"solver": {"ranks": 4}}


def on_gpus(**fields: int) -> dict[str, Any]:
    return {"hardware": {**fields, "accelerator": "gpu"}}


def build(block: type[Block], values: dict[str, Any]) -> Block:
    return block.model_validate(values, by_alias=True, by_name=False)


def problem(block: type[Block], values: dict[str, Any]) -> Problem:
    with pytest.raises(ValidationError) as caught:
        build(block, values)
    (found,) = list_problems(caught.value, block)
    return found


LIMITS: list[tuple[type[Block], dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    # block, what both have, what is taken, what is refused, words of the refusal
    (Data, GRID, {"entryMm": [-20, 20]}, {"entryMm": [-20, 20.5]}, "entryMm [-20.0, 20.5] is not a range within -20"),
    (Data, GRID, {"entryMm": [-20, 20]}, {"entryMm": [-20.5, 20]}, "such as [-2.0, 2.0]"),
    (Data, GRID, {"entryMm": [3, 3]}, {"entryMm": [3.5, 3]}, "lower <= upper"),
    (Data, GRID, {"azimuthDeg": [-360, 0]}, {"azimuthDeg": [-361, -1]}, "within -360 and 360"),
    (Data, GRID, {"azimuthDeg": [0, 360]}, {"azimuthDeg": [1, 361]}, "such as [-180, 180]"),
    (Data, GRID, {"azimuthDeg": [-180, 180]}, {"azimuthDeg": [-180, 181]}, "azimuthDeg [-180.0, 181.0] is not a range"),
    (Data, GRID, {"mirror": True, "entryMm": [-3, 3]}, {"mirror": True, "entryMm": [-2, 3]}, "such as [-3.0, 3.0]"),
    (Data, GRID, {"entryMm": [-2, 3]}, {"entryMm": [-2, 3], "mirror": True}, "entryMm [-2.0, 3.0] is not symmetric"),
    (
        Data,
        {**GRID, "mirror": True},
        {"azimuthDeg": [-180, 180]},
        {"azimuthDeg": [0, 360]},
        "such as [-180.0, 180.0]",
    ),
    (Data, {**GRID, "azimuthDeg": [0, 5]}, {"angleDeg": [90, 91]}, {"angleDeg": [90, 90]}, "no effect"),
    (Data, CYLINDER, {}, {"angleDeg": [90, 91]}, "angleDeg [90.0, 91.0] does not go with geometry.cellShape cylinder"),
    (Data, CYLINDER, {}, {"entryMm": [-1, 1]}, "entryMm [-1.0, 1.0] does not go with geometry.cellShape cylinder"),
    (Data, GRID, {"pairDistanceMm": 79.5}, {"pairDistanceMm": 80}, "pairDistanceMm 80 leaves the window of 80 mm"),
    (Data, GRID, {"pairDistanceMm": 9}, {"pairDistanceMm": 9, "source": "files"}, "Geant4 alone simulates pairs"),
    (
        Data,
        {**GRID, "pairDistanceMm": 9},
        {},
        {"simulation": {"engine": "parametrised"}},
        "Geant4 alone simulates pairs",
    ),
    (Data, CYLINDER, {}, {"pairDistanceMm": 9}, "in cells of a grid"),
    (Data, GRID, {"angleDeg": [20, 160]}, {"angleDeg": [19, 160]}, "angleDeg [19.0, 160.0] is not a range"),
    (Data, GRID, {"angleDeg": [20, 160]}, {"angleDeg": [20, 161]}, "20 <= lower <= upper <= 160"),
    (Data, GRID, {"energyGev": [1, 1]}, {"energyGev": [0, 1]}, "energyGev [0.0, 1.0] is not a range"),
    (Data, GRID, {"showers": 10**9}, {"showers": 10**9 + 1}, "at most 1,000,000,000 in showers"),
    (Preprocessing, {}, {"power": 0.01}, {"power": 1e-300}, "greater than or equal to 0.01"),
    (Checkpoint, {}, {"everySeconds": 315_360_000}, {"everySeconds": 1e300}, "less than or equal to 315360000"),
    (Recovery, {}, {"saveSeconds": 315_360_000}, {"saveSeconds": 315_360_001}, "less than or equal to 315360000"),
    (Recovery, {}, {"saveSeconds": 0.001}, {"saveSeconds": 1e-300}, "greater than or equal to 0.001"),
    (Data, {"geometry": GEOMETRY}, {"source": "files"}, {"source": "simulate"}, "showers is needed"),
    (Hardware, SLICE, {"count": 24}, {"count": 23}, "count 23 is not the number of chips of topology 2x4x3, 24"),
    (Hardware, SLICE, {"nodes": 6, "perNode": 4}, {"nodes": 6, "perNode": 3}, "of topology 2x4x3, 24"),
    (Hardware, SLICE, {"nodes": 5}, {"nodes": 5, "perNode": 4}, "nodes (hosts) 5 x perNode (chips of a host) 4"),
    (Hardware, {}, {"count": 5, "perNode": 5}, {"count": 5, "perNode": 4}, "count 5 is not a multiple of perNode 4"),
    (Hardware, {"count": 8, "perNode": 4}, {"nodes": 2}, {"nodes": 1}, "count 8 is not nodes 1 x perNode 4"),
    (Hardware, {"nodes": 2}, {"workers": 2}, {"workers": 4}, "workers 4 differ from nodes 2"),
    (Hardware, {"nodes": 2, "workers": 4}, {"placement": "Free"}, {"placement": "Aligned"}, "set placement: Free"),
    (Hardware, {"perNode": 4}, {"acceleratorsPerWorker": 4}, {"acceleratorsPerWorker": 2}, "differ from perNode 4"),
    (Model, {"preset": "fixed-angle"}, {"dropout": 0.99}, {"dropout": 1}, "less than 1"),
    (Train, {"ecalSumFit": [1.0]}, {"primaries": "uniform"}, {"primaries": "batch"}, "belong together"),
    (Train, DRAWN, {"energyScoreWeight": 0}, {"energyScoreWeight": 0.5}, "set train.energyScoreWeight to 0"),
    (Solver, {"ranks": 2}, {"groups": 2}, {"groups": 3}, "groups 3 is more than ranks 2"),
    (Solver, {}, {"objective": "my_package.Class_1"}, {"objective": "my-package.Class"}, "energy-distance, or"),
    (DataSet, {}, {"environment": "a.B"}, {"environment": "B"}, "class write a class with its module: package.module"),
    (Solver, {}, {"objective": "likelihood"}, {"objective": "XX"}, "write one of discriminator"),
    (Solver, BAYESIAN, {"ranks": 1}, {"ranks": 2}, "no gradients to exchange"),
    (Solver, LINEAR, {"exchange": "ring"}, {"exchange": "none"}, "linear is for ranks that average their gradients"),
    (SolverRun, RANKS, {"hardware": {"count": 4}}, {"hardware": {"count": 5}}, "5 is more nodes"),
    (SolverRun, RANKS, on_gpus(count=4), on_gpus(count=2), "hardware.count 2 is not solver.ranks 4"),
    (SolverRun, RANKS, on_gpus(perNode=2), on_gpus(perNode=3), "not a multiple of hardware.perNode 3"),
]


@pytest.mark.parametrize(("block", "both", "taken", "refused", "words"), LIMITS)
def test_the_last_that_is_taken_and_the_first_that_is_refused(
    block: type[Block], both: dict[str, Any], taken: dict[str, Any], refused: dict[str, Any], words: str
) -> None:
    build(block, {**both, **taken})
    found = problem(block, {**both, **refused})
    assert words in f"{found.text} {found.remedy}"


@given(st.integers(1, 400), st.integers(1, 12), st.none() | st.integers(1, 60))
def test_micro_batches_are_the_fewest_that_fit(share: int, accumulate: int, most: int | None) -> None:
    train = Train(accumulate=accumulate, max_batch_per_replica=most)
    if share % accumulate:
        with pytest.raises(InvalidValueError, match=f"accumulate {accumulate} does not divide the {share} showers"):
            train.micro_batches(share)
        return
    assume(most is not None or accumulate <= share)

    def fits(number: int) -> bool:
        return share % number == 0 and number % accumulate == 0 and share / number <= (most or share)

    number = train.micro_batches(share)
    assert fits(number) or number == share
    assert not any(map(fits, range(1, number)))


def test_a_global_batch_is_divided_among_replicas_that_divide_it() -> None:
    assert list(map(str, map(Train(global_batch_size=96).replica_batch, (1, 2, 32)))) == ["96", "48", "3"]
    assert Train(batch_per_replica=7).replica_batch(5) == 7
    with pytest.raises(InvalidValueError, match="globalBatchSize 6 is not a multiple of 4 replicas") as error:
        Train(global_batch_size=6).replica_batch(4)
    assert "1, 2, 3 or 6 replicas" in error.value.remedy
    with pytest.raises(InvalidValueError) as error:
        Train(accumulate=2).micro_batches(1)
    assert error.value.remedy == "use one of 1"


def test_the_learning_rate_grows_with_the_global_batch_where_it_is_asked_to() -> None:
    linear = Train(learning_rate_scaling="linear", learning_rate_batch=64)
    assert (linear.rate_factor(64), linear.rate_factor(160)) == (1.0, 2.5)
    assert Train(learning_rate_batch=64).rate_factor(160) == 1.0


@pytest.mark.parametrize(
    ("chosen", "by_replicas"), [(None, [False, True, True]), (True, [True] * 3), (False, [False] * 3)]
)
def test_statistics_of_all_replicas_by_default_where_there_are_several(chosen, by_replicas: list[bool]) -> None:
    assert [Train(synchronized_batch_norm=chosen).synchronizes(n) for n in (1, 2, 3)] == by_replicas


@given(*[st.integers(0, 99)] * 4)
def test_a_duration_has_the_seconds_of_its_parts(days: int, hours: int, minutes: int, seconds: int) -> None:
    parts = zip((days, hours, minutes, seconds), "dhms")
    text = "".join(f"{number}{unit}" for number, unit in parts if number)
    if not text:
        with pytest.raises(InvalidValueError, match="is not a duration"):
            seconds_of(text)
        return
    whole = dt.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    assert seconds_of(text) == whole.total_seconds()


@pytest.mark.parametrize("text", ["0s", "1", "s", "1s1m", "1.5h", "-1h", "1h ", " 1h", "1H", "1h1h", f"{'0' * 23}1s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(InvalidValueError, match="is not a duration") as error:
        seconds_of(text)
    assert "1h30m" in error.value.remedy


BEGINNINGS = ["", " ", "~", "$HOME", "${A}", "gs", "GS", "s3a", "minio", "az", "x.h5", "\u00a0", "/", "12"]
PLACES = st.builds(
    "{}{}{}".format, st.sampled_from(BEGINNINGS), st.text(":/", max_size=3), st.text("a b:/\n\0~é_", max_size=3)
)
"""Paths, addresses and what is neither."""


@given(PLACES)
def test_the_schema_takes_the_places_that_the_check_takes(place: str) -> None:
    try:
        check_place(place)
        taken = True
    except InvalidValueError:
        taken = False
    assert jsonschema.Draft202012Validator(TypeAdapter(Place).json_schema()).is_valid(place) == taken


@pytest.mark.parametrize(
    "place", ["runs", "a b", "/x/az:/y", "a:b", "~me", "$", "$a$", "gs://b", "s3://b/c", "minio://b/c"]
)
def test_what_is_a_place(place: str) -> None:
    assert check_place(place) == place


@pytest.mark.parametrize(
    "place", ["", " \n", "a\0", "~", " ~/a", "$A/b", "${A}", "gs://", "S3:a", "s3:/b", "az://b", "x:", "\u00a0gs://b"]
)
def test_what_is_no_place(place: str) -> None:
    with pytest.raises(InvalidValueError):
        check_place(place)


def test_ten_years_and_twenty_four_characters_are_the_longest() -> None:
    assert seconds_of("3650d") == seconds_of("87600h") == 315_360_000
    assert seconds_of(f"{'0' * 22}1s") == 1
    for text in ("3650d1s", "87601h"):
        with pytest.raises(InvalidValueError, match="longer than ten years") as error:
            seconds_of(text)
        assert error.value.remedy == "write 3650d or less"


@given(st.floats(1e-12, 1e11))
def test_money_in_files_is_the_same_number_without_exponent(usd: float) -> None:
    text = Budget(max_usd=usd).model_dump(mode="json")["max_usd"]
    assert float(text) == usd and Decimal(text) == Decimal(repr(usd))
    assert re.fullmatch(USD_PATTERN.replace("20", "40"), text) and not text.endswith(".0")


def test_round_money_has_no_decimals() -> None:
    assert Budget(max_usd=400).model_dump(mode="json")["max_usd"] == "400"


class Inner(Block):
    """A block in a block."""

    some: int = 1
    """A number."""
    other: bool = True
    """A choice."""


class Outer(Block):
    """A field of each kind."""

    number_gev: float = Field(ge=0, lt=2)
    """Needed."""
    pair: tuple[int, float] = (1, 2.5)
    """Two of different kinds."""
    many: tuple[float, ...] = ()
    """A list."""
    maybe: int | None = Field(None, gt=0, le=5)
    """May be absent."""
    word: str = Field("ab", pattern="^[a-z]+$")
    """A text."""
    choice: Literal["x", "y"] = "x"
    """One of two."""
    flag: bool = False
    """Yes or no."""
    inner: Inner = Inner()
    """A block."""

    @field_validator("word")
    @classmethod
    def _is_even(cls, word: str) -> str:
        if len(word) % 2:
            raise ValueError("is odd")
        return word

    inners: tuple[Inner, ...] = (Inner(),)
    """Blocks."""
    shown: str = "z" * 60
    """A default that is just short enough to be an example."""
    hidden: str = "z" * 61
    """A default that is too long for an example."""
    anything: dict[str, int] = {}
    """Of no kind that has a name."""


REMEDIES: dict[str, tuple[Any, str, str]] = {
    # field: value, location, remedy
    "numberGev": (2, "numberGev", "write a finite number at least 0 and less than 2"),
    "pair": (3, "pair", "write a list of 2: a whole number, a finite number, such as [1, 2.5]"),
    "pair of one": ([1], "pair.1", "write a finite number"),
    "many": (3, "many", "write a list"),
    "many of texts": ([1, "x"], "many.1", "write a finite number"),
    "maybe": (6, "maybe", "write a whole number greater than 0 and at most 5, or leave it out"),
    "word": ("A", "word", "write a text that matches ^[a-z]+$, such as ab"),
    "choice": ("z", "choice", "write one of: x, y, such as x"),
    "flag": ("perhaps", "flag", "write true or false"),
    "inner": (3, "inner", "write a mapping with some of the keys some, other"),
    "inners": (3, "inners", "write a list"),
    "inners of a text": ([{"some": "x"}], "inners.0.some", "write a whole number, such as 1"),
    "shown": (3, "shown", f"write a text, such as {'z' * 60}"),
    "hidden": (3, "hidden", "write a text"),
    "anything": (3, "anything", "write a value of the type in the JSON schema"),
    "anything of a text": ({"a": "x"}, "anything.a", "see the JSON schema: it lists keys, types and ranges"),
}


@pytest.mark.parametrize("case", REMEDIES)
def test_a_remedy_says_what_may_be_written(case: str) -> None:
    value, field, remedy = REMEDIES[case]
    found = problem(Outer, {"numberGev": 1, case.split()[0]: value})
    assert (found.field, found.remedy, found.own_remedy) == (field, remedy, False)
    innermost = value
    for part in found.location[1:]:
        innermost = innermost[part] if isinstance(innermost, dict) or part < len(innermost) else None
    assert found.value == innermost


def test_what_is_missing_unknown_or_refused_by_a_check() -> None:
    missing = problem(Outer, {})
    assert (missing.field, missing.text, missing.value) == ("numberGev", "is missing", None)
    near = problem(Outer, {"numberGev": 1, "numbrGev": 2})
    assert (near.field, near.text, near.value, near.own_remedy) == ("numbrGev", "unknown key", 2, False)
    assert near.remedy == "did you mean 'numberGev'?"
    assert problem(Inner, {"zzz": {}}).remedy == "known keys here: some, other"
    assert problem(Inner, {"zzz": {}}).value is None
    deep = problem(Outer, {"numberGev": 1, "inners": [{}, {"othr": 1}]})
    assert (deep.field, deep.remedy) == ("inners.1.othr", "did you mean 'other'?")
    odd = problem(Outer, {"numberGev": 1, "word": "abc"})
    assert (odd.text, odd.value, odd.own_remedy) == ("is odd", "abc", False)
    own = problem(Budget, {"deadline": "soon"})
    assert (own.field, own.value, own.own_remedy) == ("deadline", "soon", True) and own.remedy.startswith("write it as")


def test_the_nearest_name_is_suggested_if_one_is_near() -> None:
    assert suggest("abcd", ["abcx", "abxx", "zzzz"]) == "did you mean 'abcx'?"
    assert suggest("abcd", ["abxx"]) == "did you mean 'abxx'?"  # half of it is the same
    assert suggest("abcd", ["axxx", "wxyz"]) is None


def refused(file: Path | None = None, **options: Any) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        load_run(file, **options)
    return caught.value


def test_a_refusal_names_source_field_and_value(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model: {preset: compact}\ndata: {showers: 9}\ntrain:\n  workersPerNode: 2\nhardware: {}\n")
    assert refused(file).file == str(file) and not refused(file).field
    preset = refused(preset="compct")
    assert (preset.file, preset.field, preset.value) == ("--preset", "model.preset", "compct")
    assert refused(preset="zzzz").remedy == "one of: " + ", ".join(PRESETS)
    override = refused(preset="compact", overrides=["train.epochs=0"])
    assert (override.file, override.field, override.value) == ("--set", "train.epochs", 0)
    text = refused(preset="compact", overrides=["train.epochs=[1"])
    assert text.file == "--set" and "is not valid YAML" in text.problem
    none = refused(preset="compact", overrides=["train.epochs"])
    assert (none.file, none.value, none.problem) == ("--set", "train.epochs", "is not an override")
    assert load_run(preset="compact", overrides=["data.source=a=b", " data.seed =4"]).data.source == "a=b"
    file.write_text("model: {preset: compact}\ndata:\n  energyGev:\n  - 5\n  - x\n")
    listed = refused(file)
    assert (listed.file, listed.field, listed.value) == (f"{file}:5", "data.energyGev.1", "x")
    file.write_text("model:\n  latentSize: 9\n  preset: compct\n")
    assert refused(file).file == f"{file}:3"
    assert refused(preset="compact", overrides=["train.learning_rate=1"]).field == "train.learning_rate"
    gates = "model: {preset: compact}\nvalidation:\n  showers: 200\n  gates:\n"
    file.write_text(f"{gates}  - {{quantity: hits, tolerance: 9}}\n  - {{quantity: sparsitySeparation, drop: true}}\n")
    dropped = refused(file)
    assert (dropped.file, dropped.field, dropped.value) == (f"{file}:6", "validation.gates.1", None)
    preset = load_run(preset="compact").validation.gates
    assert dropped.remedy == "leave it out; the preset has " + ", ".join(gate.name for gate in preset)
    file.write_text(f"{gates[:-1]} []\n")
    assert (refused(file).file, refused(file).field, refused(file).value) == (f"{file}:4", "validation.gates", [])
    for text in ("hits", "[hits]", "[{}]"):
        file.write_text(f"{gates[:-1]} {text}\n")
        assert (refused(file).file, refused(file).exit_code) == (f"{file}:4", 2)
        assert refused(file).field.startswith("validation.gates")
    file.write_text("- 1\n")
    assert (refused(file).file, refused(file).value) == (str(file), [1])
