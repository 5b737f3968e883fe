"""Reading what caloscale wrote, also when somebody else wrote into it since."""

import inspect
from functools import partial
from pathlib import Path

import pytest
from pydantic import Field, create_model

from caloscale.errors import InputError
from caloscale.spec.block import Block, read_block, read_json
from caloscale.spec.values import Duration


class Count(Block):
    showers_made: int


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"showersMade": 3}')
    assert read_block(Count, tmp_path / "a.json", remedy="none").showers_made == 3


@pytest.mark.parametrize(
    ("content", "field", "value"),
    [
        (b'{"showersMade": "many"}', "showersMade", "many"),
        (b'{"showersMade": 3, "hits": 1}', "hits", 1),
        (b'{"showersMade": 3', None, None),
        (b"\xff\xfe", None, None),
        (b"", None, None),
    ],
)
def test_a_damaged_file_is_named_with_field_value_and_remedy(
    tmp_path: Path, content: bytes, field: str | None, value: object
) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(content)
    with pytest.raises(InputError) as raised:
        read_block(Count, file, remedy="make it again")
    error = raised.value
    assert (error.file, error.field, error.value, error.remedy) == (str(file), field, value, "make it again")
    assert error.exit_code == 2 and error.problem


class Lasting(Block):
    lasts: Duration = "1h"


def test_a_check_that_knows_the_remedy_gives_it(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"lasts": "soon"}')
    with pytest.raises(InputError, match="'soon' is not a duration") as raised:
        read_block(Lasting, file, remedy="make it again")
    assert raised.value.remedy.startswith("write it as 90s")


def test_one_that_cannot_be_read(tmp_path: Path) -> None:
    for read in (partial(read_block, Count), read_json):
        with pytest.raises(InputError, match=r"a\.json: cannot be read: No such file") as raised:
            read(tmp_path / "a.json", remedy="make it")
        assert raised.value.remedy == "make it"


def test_a_file_for_pages_is_read_or_named(tmp_path: Path) -> None:
    file = tmp_path / "history.json"
    file.write_text('{"losses": [1.5]}')
    assert read_json(file, remedy="none") == {"losses": [1.5]}
    for content in (b'{"losses": [1.5', b"\xff\xfe", b""):
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"history\.json.*is not JSON(.|\n)*delete it"):
            read_json(file, remedy="delete it")


class Described(Block):
    own_field: int = 1
    """What it is,
    in two lines."""
    given: int = Field(1, description="Said in the field.")
    """Not this."""
    without: int = 1


class Inheriting(Described):
    further: Described | None = None
    """Below a reference."""
    without: int = 2
    """Described where it is changed."""


def test_the_schema_has_the_docstrings_of_fields() -> None:
    described = {name: field.get("description") for name, field in Inheriting.model_json_schema()["properties"].items()}
    assert described == {
        "ownField": "What it is,\nin two lines.",
        "given": "Said in the field.",
        "without": "Described where it is changed.",
        "further": "Below a reference.",
    }
    assert Described.model_json_schema()["properties"]["without"].get("description") is None


def test_a_block_that_a_function_makes_has_a_schema() -> None:
    made = create_model("Made", __base__=Described, further=(int, 1))
    assert made.model_json_schema()["properties"]["ownField"]["description"].startswith("What it is")


def test_no_source_is_read_before_a_schema_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a fifth of a second in every process."""
    read: list[object] = []

    def findsource(what: object) -> None:
        read.append(what)
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr(inspect, "findsource", findsource)

        class Late(Block):
            field: int = 1
            """What it is."""

    assert read == [] and Late(field=3).field == 3
