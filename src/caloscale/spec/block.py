"""What every block of the run configuration has in common."""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError
from pydantic_core.core_schema import no_info_before_validator_function

from caloscale.errors import InputError
from caloscale.spec.problem import list_problems

_DECIMAL = re.compile(r"[0-9]+([.][0-9]+)?")


def _refuse_other_kinds(schema: Any) -> None:
    """Check numbers and booleans of a core schema before pydantic converts them; inner blocks have done so."""
    if isinstance(schema, list | tuple):
        for part in schema:
            _refuse_other_kinds(part)
    elif isinstance(schema, dict) and schema.get("type") in ("int", "float", "bool", "literal"):
        inner = dict(schema)
        schema.clear()
        schema.update(no_info_before_validator_function(_check_of(inner), inner))
    elif isinstance(schema, dict) and schema.get("type") != "model":
        for key, part in schema.items():
            if key not in ("default", "metadata", "serialization"):
                _refuse_other_kinds(part)


def _check_of(schema: Mapping[str, Any]) -> Callable[[Any], Any]:
    kind, expected = schema["type"], schema.get("expected", ())
    written_as_text = "serialization" in schema  # money

    def check(value: Any) -> Any:
        if written_as_text and isinstance(value, str) and _DECIMAL.fullmatch(value):
            return float(value)
        if kind == "bool" and not isinstance(value, bool):
            raise PydanticKnownError("bool_type")
        inexact = kind == "int" and isinstance(value, float) and abs(value) > 2**53
        if kind in ("int", "float") and (isinstance(value, bool | str) or inexact):
            raise PydanticKnownError("int_type" if kind == "int" else "float_type")
        if kind == "literal" and isinstance(value, bool) and not any(value is one for one in expected):
            raise PydanticKnownError("literal_error", {"expected": " or ".join(map(repr, expected))})
        return value

    return check


class Block(BaseModel):
    """A frozen block of the run configuration: camelCase in files, unknown keys refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        allow_inf_nan=False,
        strict=False,
    )

    def as_json(self) -> str:
        """The text of a file of it."""
        return self.model_dump_json(by_alias=True, indent=2)

    def as_values(self) -> dict[str, Any]:
        """The values of such a file."""
        return self.model_dump(mode="json", by_alias=True)

    def values_of(self, *names: str) -> dict[str, Any]:
        """The values of some fields, for a block that has fields of the same names."""
        return {name: getattr(self, name) for name in names}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        """Values that are taken: a boolean or a text is no number, and true and false are the only booleans.

        Whole numbers may be written as 1e2 or 100.0, and a list is a tuple, which pydantic's own strict mode refuses.
        """
        schema: Any = handler(source)
        model = schema
        while model["type"] != "model":  # within the functions of model validators
            model = model["schema"]
        _refuse_other_kinds(model["schema"])
        return schema

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema; the description of a field is the docstring below it.

        As with pydantic's use_attribute_docstrings, which reads the sources of all blocks in every process: a fifth of
        a second.
        """
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for name, text in _field_docstrings(cls).items():
            properties[cls.model_fields[name].alias or name].setdefault("description", text)
        return schema


def describe_field(block: type[Block], name: str) -> str:
    """The docstring below a field."""
    return _field_docstrings(block)[name]


@cache
def _field_docstrings(block: type[Block]) -> dict[str, str]:
    """By the name of the field; of blocks that are written as classes."""
    texts: dict[str, str] = {}
    for base in reversed(block.__mro__):
        if not issubclass(base, Block) or base is Block:
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except OSError:  # made by a function
            continue
        for field, below in pairwise(getattr(body, "body", ())):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    if name in block.model_fields:
                        texts[name] = inspect.cleandoc(text)
    return texts


_B = TypeVar("_B", bound=BaseModel)


def read_block(
    kind: type[_B], file: Path, *, remedy: str, error: type[InputError] = InputError, what: str | None = None
) -> _B:
    """The content of a JSON file that caloscale wrote.

    Raises an error with file, field and value when it is damaged or cannot be read; what: that the file then is not.
    """
    return parse_block(kind, _content(file, remedy, error), file, remedy=remedy, error=error, what=what)


def parse_block(
    kind: type[_B],
    content: bytes,
    file: Path | str,
    *,
    remedy: str,
    error: type[InputError] = InputError,
    what: str | None = None,
) -> _B:
    """The content of such a file or object, read already; raises as `read_block`."""
    try:
        return kind.model_validate_json(content, by_alias=True, by_name=False)
    except ValidationError as problems:
        first = list_problems(problems, kind)[0]
        raise error(
            first.text if what is None else f"is not {what}: {first.text}",
            file=file,
            field=first.field or None,
            value=first.value if isinstance(first.value, str | int | float) else None,
            remedy=first.remedy if first.own_remedy else remedy,
        ) from None


def read_json(file: Path, *, remedy: str) -> Any:
    """The content of a JSON file that caloscale wrote only for people's pages and has no block for.

    Raises InputError when it is damaged or cannot be read.
    """
    try:
        return json.loads(_content(file, remedy, InputError))
    except ValueError as error:
        raise InputError(f"is not JSON: {error}", file=file, remedy=remedy) from None


def _content(file: Path, remedy: str, error: type[InputError]) -> bytes:
    try:
        return file.read_bytes()
    except OSError as problem:
        raise error(f"cannot be read: {problem.strerror}", file=file, remedy=remedy) from problem
