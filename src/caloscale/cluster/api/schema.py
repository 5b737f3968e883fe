"""A pydantic block as the structural OpenAPI v3 schema of a custom resource."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from caloscale.cluster.api.rules import DURATION_RULES, USD_RULE, Rule
from caloscale.spec import PRESETS, SOLVER_PRESETS, load_preset
from caloscale.spec.budget import INT_OR_STRING, USD_PATTERN
from caloscale.spec.values import PATTERN

KEPT = {
    "type",
    "description",
    "enum",
    "default",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "pattern",
    "format",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
}
"""Keywords that mean the same in both and are copied."""
DROPPED = {"title", "additionalProperties", "$defs", "required", "properties", "items", "prefixItems", "anyOf", "const"}
"""Keywords that are translated, or have no place beside properties."""
FORMATS = {"date-time", "date"}
ANY_VALUE = "x-kubernetes-preserve-unknown-fields"
"""Keyword of a field with values of several types, which a structural schema cannot list."""
MOST_ITEMS = 64
"""Bound of a list without one of its own: the API server adds up what its rules may cost."""


def schema_of(
    block: type[BaseModel],
    rules: Mapping[str, list[Rule]] | None = None,
    *,
    preset: bool = False,
    defaults: bool = True,
) -> dict[str, Any]:
    """The structural schema of a block, with CEL rules by dotted path (the empty path is the block itself).

    References are inlined, ``X | None`` becomes X (the API server prunes nulls), tuples become lists of fixed length.
    ``preset``: the block is a run configuration; a field that a preset sets has no default here, or the server would
    overwrite the preset's value before anybody reads it. Raises ValueError for what no structural schema can say
    (unions of types without a keyword).
    """
    source = block.model_json_schema(by_alias=True, mode="validation")
    soft = frozenset(preset_paths()) - {"model.preset", "solver.preset"} if preset else frozenset[str]()
    return _Translation(source.get("$defs", {}), dict(rules or {}), soft, defaults).of(source, "")


@functools.cache
def preset_paths() -> tuple[str, ...]:
    """Dotted paths of all fields that some preset sets."""
    presets = (*PRESETS, *SOLVER_PRESETS)
    return tuple(sorted({path for preset in presets for path in _leaves(load_preset(preset), "")}))


def _leaves(raw: Mapping[str, Any], path: str) -> Iterator[str]:
    for key, value in raw.items():
        inner = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            yield from _leaves(value, inner)
        else:
            yield inner


class _Translation:
    def __init__(
        self, definitions: Mapping[str, Any], rules: dict[str, list[Rule]], soft: frozenset[str], defaults: bool
    ) -> None:
        self.definitions, self.rules, self.soft, self.defaults = definitions, rules, soft, defaults

    def of(self, node: Mapping[str, Any], path: str) -> dict[str, Any]:
        may_be_null = {"type": "null"} in node.get("anyOf", ())
        node = self._resolved(node)
        if INT_OR_STRING in node:
            return self._money(node["description"])
        if ANY_VALUE in node:
            return {"description": " ".join(node["description"].split()), ANY_VALUE: True}
        unknown = set(node) - KEPT - DROPPED
        if unknown:
            raise ValueError(f"{path}: a structural schema has no {sorted(unknown)}")
        made = {key: value for key, value in node.items() if key in KEPT}
        if "const" in node:
            made["enum"] = [node["const"]]
        if "type" not in made:
            raise ValueError(f"{path}: needs one type, has {node}")
        if made.get("format") not in FORMATS:
            made.pop("format", None)
        self._bound(made)
        if made["type"] == "object":
            self._properties(node, made, path)
        elif made["type"] == "array":
            self._items(node, made, path)
        self._default(made, path)
        if path in self.soft and may_be_null:
            made["nullable"] = True
        rules = [*self.rules.get(path, ())]
        if made.get("pattern") == PATTERN:
            del made["pattern"]
            rules += DURATION_RULES
        if rules:
            made["x-kubernetes-validations"] = [rule._asdict() for rule in rules]
        if "description" in made:
            made["description"] = " ".join(made["description"].split())
        return made

    def _resolved(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """Without references and without ``| None``; the description of the field before that of its block."""
        flat = dict(node)
        while "$ref" in flat or ("anyOf" in flat and not {INT_OR_STRING, ANY_VALUE} & flat.keys()):
            if "$ref" in flat:
                target = self.definitions[flat.pop("$ref").rpartition("/")[2]]
            else:
                options = [option for option in flat.pop("anyOf") if option != {"type": "null"}]
                if len(options) != 1:
                    raise ValueError(f"a structural schema has no union of {options}")
                target = options[0]
            flat = {**target, **flat}
        return flat

    def _money(self, description: str) -> dict[str, Any]:
        """A decimal string; a person may write whole dollars without quotation marks, as with quantities."""
        if not self.defaults:
            return {"type": "string", "description": description, "pattern": USD_PATTERN}
        return {
            "description": description,
            INT_OR_STRING: True,
            "maxLength": 24,
            "x-kubernetes-validations": [USD_RULE._asdict()],
        }

    def _default(self, made: dict[str, Any], path: str) -> None:
        """What the API server fills in; of a block only that it is there, its fields have defaults of their own."""
        default = made.pop("default", None)
        if path in self.soft:
            text = "the preset's" + ("" if default is None else f", otherwise {_plain(default)}")
            made["description"] = f"{made.get('description', '')} Not given: {text}."
        elif default is not None and self.defaults:
            made["default"] = {} if made["type"] == "object" and "properties" in made else _without_nulls(default)

    def _properties(self, node: Mapping[str, Any], made: dict[str, Any], path: str) -> None:
        if "properties" not in node:
            inner = node.get("additionalProperties")
            if isinstance(inner, Mapping):
                made["additionalProperties"] = self.of(inner, f"{path}[]")
            else:
                made["x-kubernetes-preserve-unknown-fields"] = True
            return
        prefix = f"{path}." if path else ""
        made["properties"] = {name: self.of(value, prefix + name) for name, value in node["properties"].items()}
        given = {p[len(prefix) :].partition(".")[0] for p in self.soft if p.startswith(prefix)}
        if required := [name for name in node.get("required", ()) if name not in given]:
            made["required"] = required

    def _items(self, node: Mapping[str, Any], made: dict[str, Any], path: str) -> None:
        if "prefixItems" in node:
            kinds = [self.of(item, f"{path}[]") for item in node["prefixItems"]]
            if any(kind != kinds[0] for kind in kinds):
                raise ValueError(f"{path}: a list of different types has no structural schema")
            made["items"] = kinds[0]
        else:
            made["items"] = self.of(node["items"], f"{path}[]")
            if self.rules:
                made.setdefault("maxItems", MOST_ITEMS)
        if path.endswith("[]"):
            raise ValueError(f"{path}: lists of lists are not needed")

    @staticmethod
    def _bound(made: dict[str, Any]) -> None:
        """Exclusive bounds are flags in OpenAPI v3.0."""
        for bound in ("minimum", "maximum"):
            exclusive = f"exclusive{bound.capitalize()}"
            if exclusive in made:
                made[bound], made[exclusive] = made[exclusive], True


def _without_nulls(value: Any) -> Any:
    """A default as the API server would store it."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
