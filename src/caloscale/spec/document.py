"""The one reader of YAML that a person writes: the core schema of YAML 1.2, of which JSON is a part.

PyYAML reads YAML 1.1, where ``060`` is 48, ``yes`` is true, ``1:30`` is 90, ``2020-01-01`` is a date and ``1e2`` is a
text. Here true and false are the only booleans, ``1e2`` is 100, and a number with a leading zero is refused.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import yaml

from caloscale.errors import ConfigurationError, cut, shorten

LARGEST = 1_000_000
"""Most characters of a document, and of what its aliases repeat; a custom resource has the same limit."""
_TAG = "tag:yaml.org,2002:"
_SCALARS = {
    "null": "null|Null|NULL|~|",
    "bool": "true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}
"""Plain scalars of the core schema (https://yaml.org/spec/1.2.2/#1032-tag-resolution), in the order of precedence."""
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]")


class _Loader(yaml.SafeLoader):
    """The core schema. Of two equal keys PyYAML would keep the last without a message; they are refused, and so is
    <<, which would be a key like others."""

    yaml_implicit_resolvers: Any = {}
    yaml_constructors: Any = {  # type: ignore[misc]
        f"{_TAG}seq": yaml.SafeLoader.construct_yaml_seq,
        f"{_TAG}map": yaml.SafeLoader.construct_yaml_map,
        None: yaml.SafeLoader.construct_undefined,
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for each, _ in node.value:
            if (key := self.construct_object(each, deep=True)) in keys:
                problem = f"key {shorten(key)} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, each.start_mark)
            if key == "<<":
                problem = "<< merges mappings in YAML 1.1 only: write the fields out"
                raise yaml.constructor.ConstructorError(None, None, problem, each.start_mark)
            keys.add(key)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that YAML 1.1 or 1.2 would read as something else."""


def _text(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    text: str = loader.construct_scalar(node)
    return text.encode("utf-16", "surrogatepass").decode("utf-16")  # JSON writes a character as a pair of surrogates


def _constructor(kind: str, pattern: str) -> Callable[[yaml.SafeLoader, yaml.ScalarNode], Any]:
    def construct(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
        text = loader.construct_scalar(node)
        if not re.fullmatch(pattern, text):  # with a tag of its own, such as !!int
            raise yaml.constructor.ConstructorError(None, None, f"{shorten(text)} is no {kind}", node.start_mark)
        if kind == "int":
            return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
        if kind == "float":
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        return None if kind == "null" else text.lower() == "true"

    return construct


_Loader.add_constructor(f"{_TAG}str", _text)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Line breaks of Unicode are escaped: PyYAML writes them unquoted, and reads them as blanks."""
    style = '"' if re.search("[\x85\u2028\u2029]", text) else None
    return dumper.represent_scalar(f"{_TAG}str", text, style=style)


_Dumper.add_representer(str, _represent_text)
for _kind, _pattern in _SCALARS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"{_TAG}{_kind}", re.compile(rf"(?:{_pattern})\Z"), None)
    _Loader.add_constructor(f"{_TAG}{_kind}", _constructor(_kind, _pattern))


def read_file(file: str | Path) -> str:
    """The text of a document; raises ConfigurationError when it cannot be read, is no UTF-8 or too large."""
    try:
        with Path(file).open("rb") as stream:
            content = stream.read(LARGEST + 1)
    except OSError as error:
        remedy = "give the path of a run configuration (YAML)"
        raise ConfigurationError(f"cannot be read: {error.strerror}", file=file, remedy=remedy) from error
    if len(content) > LARGEST:
        remedy = "give the path of a run configuration (YAML)"
        raise ConfigurationError(f"has more than {LARGEST:,} bytes", file=file, remedy=remedy)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError("is not UTF-8 text", file=file, remedy="save it as UTF-8") from error


def parse(text: str, *, file: object = None, field: str = "") -> tuple[Any, yaml.Node | None]:
    """The content of a YAML text, and its node, which knows the lines. ``field``: where the value belongs.

    Raises ConfigurationError: no YAML, several documents, a key twice, a number with a leading zero, or aliases that
    repeat more than `LARGEST` characters.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None:
            _Check(file).size(node, field)
        return None if node is None else loader.construct_document(node), node
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        problem = "it is nested too deeply" if isinstance(error, RecursionError) else cut(str(error))
        problem, remedy = f"is not valid YAML: {problem}", "check indentation and quotes"
        raise ConfigurationError(problem, file=file, field=field or None, remedy=remedy) from error


def parse_value(text: str, *, file: object, field: str) -> Any:
    """The value of an option ``field=text``: a list, a mapping or a quoted text as YAML, else the whole text, in which
    `` #`` begins no comment and ``: `` no mapping. Raises ConfigurationError.
    """
    text = text.strip()
    if text[:1] not in ("[", "{", '"', "'"):
        loader: Any = _Loader("")
        scalar = yaml.ScalarNode(loader.resolve(yaml.ScalarNode, text, (True, False)), text)
        _Check(file).size(scalar, field)
        return loader.construct_object(scalar)
    value, node = parse(text, file=file, field=field)
    if node is not None and node.end_mark.index < len(text):
        remedy = "put the whole value in quotes"
        raise ConfigurationError("has text after its value", file=file, field=field, value=text, remedy=remedy)
    return value


def dump(value: Any) -> str:
    """A value as YAML that `parse` reads back."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Check:
    """The nodes of one document: their size with all that aliases repeat, and numbers with a leading zero."""

    def __init__(self, file: object) -> None:
        self._file = "" if file is None else str(file)
        self._sizes: dict[int, int | None] = {}
        """By node; None: not known yet, as for a node that contains itself."""

    def size(self, node: yaml.Node, field: str) -> int:
        """Characters and nodes below a node; raises ConfigurationError."""
        if id(node) in self._sizes:
            known = self._sizes[id(node)]
            if known is None:
                self._refuse(node, field, "has an alias of a value that contains it", "write the value out")
            return known
        self._sizes[id(node)] = None
        total = 1
        if isinstance(node, yaml.ScalarNode):
            total += len(node.value)
            if node.tag in (f"{_TAG}int", f"{_TAG}float") and _LEADING_ZERO.match(node.value):
                plain = cut(re.sub(r"^([-+]?)0+(?=[0-9])", r"\1", node.value))
                remedy = f"write {plain}, or for a text put it in quotes"
                self._refuse(node, field, "has a leading zero, which YAML 1.1 reads as octal", remedy)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                total += self.size(item, f"{field}.{index}" if field else str(index))
        else:
            for key, item in node.value:
                name = key.value if isinstance(key, yaml.ScalarNode) else ""
                total += self.size(key, field) + self.size(item, f"{field}.{name}" if field else name)
        if total > 2 * LARGEST:
            self._refuse(node, field, f"has aliases that repeat more than {LARGEST:,} characters", "write fewer")
        self._sizes[id(node)] = total
        return total

    def _refuse(self, node: yaml.Node, field: str, problem: str, remedy: str) -> NoReturn:
        line = f":{node.start_mark.line + 1}" if node.start_mark and self._file not in ("", "--set") else ""
        file = f"{self._file}{line}" or None
        value = node.value if isinstance(node, yaml.ScalarNode) else None
        raise ConfigurationError(problem, file=file, field=field or None, value=value, remedy=remedy)
