"""Run configurations that were read wrongly: YAML 1.1, converted kinds, aliases, and values of --set."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from caloscale import spec
from caloscale.errors import MOST_CHARACTERS, ConfigurationError, InputError
from caloscale.spec import document
from caloscale.spec.configuration import parse_overrides, parse_yaml
from caloscale.studies.sweep import load_study

INPUTS = Path(__file__).parent / "inputs"

READ = {
    "on": "on", "no": "no", "Yes": "Yes", "y": "y", "true": True, "FALSE": False, "tRUE": "tRUE",
    "null": None, "~": None, "": None, "nULL": "nULL",
    "1:30": "1:30", "1_000": "1_000", "2020-01-01": "2020-01-01", "0b11": "0b11", "=": "=",
    "0o17": 15, "0x1F": 31, "+5": 5, "-0": 0, "0": 0, "0.5": 0.5, ".5": 0.5, "1.": 1.0, "1.e3": 1000.0, "1e2": 100.0,
    "1E-5": 1e-5, "-.inf": -math.inf, "'060'": "060", "!!str 060": "060", '"\\ud83d\\ude00"': "\U0001f600",
}  # fmt: skip
"""By the text, as https://yaml.org/spec/1.2.2/#1032-tag-resolution has it."""
REFUSED = {
    "060": "leading zero", "-08.5": "leading zero", "[1, {b: 007}]": "a.1.b: has a leading zero", "00": "leading zero",
    "1\na: 2": "key 'a' is given twice", "\n\tb: 1": "cannot start any token", "1\n---\na: 2": "a single document",
    "!!int 1_0": "is no int", "!!bool yes": "is no bool", "!!binary aGk=": "constructor",
    "!!python/name:os.system x": "constructor", "&x [*x]": "contains it", '"\\ud83d"': "not valid YAML",
    "[" * 3000: "too deeply", "9" * 5000: "not valid YAML", "*b": "undefined alias", "\x00": "not valid YAML",
    "&y {b: 1}\nc: {<<: *y}": "<< merges mappings",
}  # fmt: skip


@pytest.mark.parametrize("text", READ)
def test_scalars_are_those_of_the_core_schema(text: str) -> None:
    assert parse_yaml(f"a: {text}") == {"a": READ[text]}
    assert parse_yaml(f"\ufeffb: [{text or '~'}]\n...\n") == {"b": [READ[text]]}  # a byte order mark, an end
    if not text.startswith("!"):
        assert parse_overrides([f"x.a={text}"]) == {"x": {"a": READ[text]}}
    written = document.dump({"a": text})
    assert parse_yaml(written) == yaml.safe_load(written) == {"a": text}  # by readers of YAML 1.2 and 1.1


@pytest.mark.parametrize("text", REFUSED)
def test_what_can_be_misread_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"a: {text}", encoding="utf-8")
    for load in (spec.load_run, load_study):
        with pytest.raises(ConfigurationError) as caught:
            load(file)
        assert REFUSED[text] in str(caught.value) and caught.value.file.startswith(str(file)), caught.value
        assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"# nothing\n", "is empty"),
        ("model: {preset: compact}".encode("utf-16"), "UTF-8"),
        (b"data: {source: \xb5.h5}", "UTF-8"),
        (b"#" * (document.LARGEST + 1), "bytes"),
    ],
)
def test_a_file_that_is_no_text_of_a_configuration(content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"run\.yaml: .*{problem}"):
        spec.load_any_run(tmp_path / "run.yaml")


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("my data #2", "my data #2"),
        ("a: b", "a: b"),
        ("*.h5", "*.h5"),
        ("- x", "- x"),
        ("'my data #2'", "my data #2"),
        ('["a #1", b]', ["a #1", "b"]),
        ("[1, 2] # both", None),
        ("[a #1, b]", None),
        ("{b: 1} {c: 2}", None),
        ("'a", None),
        ("[060, 0120]", None),
        ("0100", None),
    ],
)
def test_a_value_of_set_is_whole_or_refused(override: str, value: Any) -> None:
    if value is None:
        with pytest.raises(ConfigurationError) as caught:
            parse_overrides([f"source={override}"])
        assert caught.value.field.startswith("source") and caught.value.file == "--set"
    else:
        assert parse_overrides([f"source={override}"]) == {"source": value}


KINDS = {
    "train.epochs": (100, [1e2, 100.0, 100], [True, "60", "yes", 1.5, 2.0**54, None, [1]]),
    "train.maxMinutes": (1, [1, 1.0], [True, "1", "yes"]),
    "train.deterministic": (True, [True], [1, 1.0, "yes", "true"]),
    "data.energyGev": ((5, 40), [[5, 40.0]], [[True, 40], ["5", 40], 5]),
    "budget.maxUsd": (99.5, [99.5, "99.50"], [True, "1e2", "0x1F", "nan", "1_0", ""]),
    "solver.delay": (1, [1], [True, "1"]),
}


@pytest.mark.parametrize("name", KINDS)
def test_only_numbers_are_numbers_and_only_booleans_are_booleans(name: str) -> None:
    """Also in a custom resource, which is JSON."""
    want, taken, refused = KINDS[name]
    block, _, field = name.partition(".")
    for value in [*taken, *refused]:
        raw = {"solver": {}} if block == "solver" else {"model": {"preset": "compact"}}
        raw[block] = {field: value}
        if value in refused and not any(value is one for one in taken):
            with pytest.raises(ConfigurationError) as caught:
                spec.build_any_run(raw)
            assert caught.value.field.startswith(name)
        else:
            made = spec.build_any_run(raw).model_dump(by_alias=True)[block][field]
            assert (made == want and type(made) is type(want)) or isinstance(want, int | float)


@pytest.mark.parametrize(
    ("case", "fields"),
    [
        ("yaml-bool-as-number", {"train.epochs": "yes", "train.seed": "on", "train.maxMinutes": True}),
        ("yaml-leading-zero", {"data.angleDeg.0": "060"}),
    ],
)
def test_cases_that_are_refused(case: str, fields: dict[str, object], command: Callable) -> None:
    with pytest.raises(ConfigurationError) as caught:
        spec.load_run(INPUTS / case / "run.yaml")
    assert {error.field: error.value for error in (caught.value, *caught.value.also)} == fields
    done = command("plan", INPUTS / case / "run.yaml", "--json")
    assert done.code == 2 and not done.out and all(field in done.err for field in fields)


def test_an_exponent_is_a_whole_number() -> None:
    assert spec.load_run(INPUTS / "yaml-exponent-integer" / "run.yaml").train.epochs == 100


def test_aliases_that_grow_are_refused_in_a_short_message(command: Callable) -> None:
    done = command("plan", INPUTS / "yaml-bomb" / "bomb.yaml")
    assert done.code == 2 and "aliases" in done.err and len(done.err) < 4000
    assert parse_yaml("a: &a [1, 2]\nb: [*a, *a]") == {"a": [1, 2], "b": [[1, 2], [1, 2]]}


@pytest.mark.parametrize(
    "raw",
    [
        {"train": {"epochs": [[["x" * 10**5] * 100] * 100] * 100}},
        {"train": {"epochs": "x" * 10**6}},
        {"train": {"x" * 10**6: 1}},
        {"train": {f"x{n}": n for n in range(2000)}},
        {"budget": {"deadline": "x" * 10**6}},
        {"model": {"preset": "x" * 10**6}},
    ],
)
def test_messages_are_short_however_large_a_value_is(raw: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        spec.build_run(raw)
    assert len(str(caught.value)) < 30 * MOST_CHARACTERS


def test_a_configuration_may_come_from_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second reading of it would be empty: then the plan was that of another network."""
    texts = ["model: {preset: compact}\ntrain: {epochs: 7}", ""]
    monkeypatch.setattr(document, "read_file", lambda _: texts.pop(0))
    assert spec.load_any_run("/dev/fd/63").train.epochs == 7
