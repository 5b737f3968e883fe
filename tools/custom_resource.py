"""The custom resource TrainingRun: pydantic blocks of configuration and status as structural OpenAPI v3 schemas."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any, get_args

import yaml
from pydantic import BaseModel

from caloscale.cluster.names import GROUP, KIND, PLURAL, PROGRESS_KIND, PROGRESS_PLURAL, SHORT_NAME, VERSION
from caloscale.cluster.workload.pod_template import SHARED
from caloscale.spec import PRESETS, SOLVER_PRESETS, Run, SolverRun, load_preset
from caloscale.spec.budget import INT_OR_STRING, USD_PATTERN
from caloscale.spec.cluster import GRACE_SECONDS
from caloscale.spec.values import BUCKET_PATTERN, BUCKETS, MOST_DAYS, NO_PATH_PATTERN, PATTERN
from caloscale.status import Phase, RunProgress, RunStatus

KEPT = {
    "type", "description", "enum", "default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "minLength", "maxLength", "minItems", "maxItems", "pattern", "format", "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
}  # fmt: skip
"""Keywords that mean the same in both and are copied."""
DROPPED = {
    "title", "additionalProperties", "$defs", "required", "properties", "items", "prefixItems", "anyOf", "const", "not",
}  # fmt: skip
"""Keywords that are translated, or have no place beside properties."""
FORMATS = {"date-time", "date"}
ANY_VALUE = "x-kubernetes-preserve-unknown-fields"
"""Keyword of a field with values of several types, which a structural schema cannot list."""
MOST_ITEMS = 64
"""Bound of a list without one of its own: the API server adds up what its rules may cost."""


# What the API server checks of a spec beyond types: CEL rules (custom_resource_rules.yaml), each with the remedy in its
# message. The messages are those of the parser (`caloscale.spec`), so that users read the same from both; a test holds
# the two together.


Rule = Mapping[str, str]
"""A CEL rule of a schema: ``rule``, what must be true; ``message``, what a person reads when it is not."""

_SECONDS = " + ".join(
    f"int('0' + self.find('[0-9]+{unit}').replace('{unit}', '')) * {seconds}"
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
)
DURATION_RULES: list[Rule] = [
    {
        "rule": "self.matches('^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && self.matches('[1-9]')",
        "message": "is not a duration; remedy: write it as 90s, 10m, 6h, 1h30m or 2d",
    },
    {  # numbers of more digits than any such time has would be none for int()
        "rule": f"!self.matches('[1-9][0-9]{{9}}') && {_SECONDS} <= {MOST_DAYS * 86_400}",
        "message": f"is longer than ten years; remedy: write {MOST_DAYS}d or less",
    },
]
USD_RULE: Rule = {
    "rule": f"type(self) == int ? self > 0 : self.matches('{USD_PATTERN}') && self.matches('[1-9]')",
    "message": "is not an amount of US dollars; remedy: write it as 400 or "
    '"99.50", with quotation marks where it has cents',
}
PLACE_RULE: Rule = {
    "rule": f"self.matches(r'{BUCKET_PATTERN}') || !self.matches(r'{NO_PATH_PATTERN}')",
    "message": "is no path and no address of a bucket that works here; remedy: write the path of a folder or file in "
    "full, or gs://bucket/prefix (also s3:// and minio://)",
}
_AXES = [f"int(self.topology.split('x')[{axis}])" for axis in range(3)]
_CHIPS = f"(self.topology.split('x').size() == 2 ? {' * '.join(_AXES[:2])} : {' * '.join(_AXES)})"


def _rules_of(entry: Mapping[str, Any]) -> Iterator[Rule]:
    """One rule, or one for each field that is set once: an edit would be ignored, or lose what is stored there.

    lasting: a rule for a place, which is in a bucket or on the claim that the field ``claim`` names.
    """
    if "rule" in entry:
        yield entry
        return
    changed = f"cannot be changed: {entry.get('why')}; remedy: make another TrainingRun"
    for name in entry.get("unchanged", ()):
        now, before = f"self.{name}", f"oldSelf.{name}"
        rule = f"has({now}) == has({before}) && (!has({now}) || {now} == {before})"
        yield {"rule": rule, "message": f"{name} {changed}"}
    if "once" in entry:  # a text in a block that may be absent
        block, _, field = entry["once"].partition(".")
        texts = (
            f"(has({o}.{block}) && has({o}.{block}.{field}) ? {o}.{block}.{field} : '')" for o in ("self", "oldSelf")
        )
        yield {"rule": " == ".join(texts), "message": f"{entry['once']} {changed}"}
    if "lasting" in entry:
        place = f"self.{entry['lasting']}"
        on_claim = f"{_has(entry['claim'])} && {place}.startsWith('{SHARED}/') && !{place}.matches('(^|/)[.][.](/|$)')"
        yield {
            "rule": f"!({_has(entry['lasting'])}) || {place}.matches('^({'|'.join(BUCKETS)})') || ({on_claim})",
            "message": f"{entry['lasting']} is neither in a bucket nor below {SHARED} with cluster.volumeClaim: it "
            f"ends with the pods; remedy: write gs://bucket/prefix (also s3:// and minio://), or {SHARED}/NAME "
            "(without ..) and cluster.volumeClaim",
        }


def _has(path: str) -> str:
    """Whether a field of a block that may be absent is there, in CEL."""
    parts = path.split(".")
    return " && ".join(f"has(self.{'.'.join(parts[: i + 1])})" for i in range(len(parts)))


_RULES = Template(Path(__file__).with_name("custom_resource_rules.yaml").read_text(encoding="utf-8"))
RUN_RULES: dict[str, list[Rule]] = {
    path: [rule for entry in entries for rule in _rules_of(entry)]
    for path, entries in yaml.safe_load(_RULES.substitute(chips=_CHIPS, grace=GRACE_SECONDS)).items()
}
"""Rules by dotted path of the spec."""


def schema_of(block: type[BaseModel], *, spec: bool = False) -> dict[str, Any]:
    """The structural schema of a block.

    References are inlined, ``X | None`` becomes X (the API server prunes nulls), tuples become lists of fixed length.
    Raises ValueError for what no structural schema can say (unions of types without a keyword).

    Args:
        spec: the block is a run configuration, with rules and defaults. A field that a preset sets has no default here,
            or the server would overwrite the preset's value before anybody reads it. Otherwise it is a block of the
            status, which programs write: it has neither.
    """
    source = block.model_json_schema(by_alias=True, mode="validation")
    return _Translation(source.get("$defs", {}), spec).of(source, "")


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
    def __init__(self, definitions: Mapping[str, Any], spec: bool) -> None:
        self.definitions, self.spec = definitions, spec
        self.soft = set(preset_paths()) - {"model.preset", "solver.preset"} if spec else set()

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
        if made.get("format") not in FORMATS:
            made.pop("format", None)
        for bound in ("minimum", "maximum"):
            exclusive = f"exclusive{bound.capitalize()}"  # a flag in OpenAPI v3.0
            if exclusive in made:
                made[bound], made[exclusive] = made[exclusive], True
        if "type" not in made:
            raise ValueError(f"{path}: needs one type, has {node}")
        if made["type"] == "object":
            self._properties(node, made, path)
        elif made["type"] == "array":
            self._items(node, made, path)
        self._default(made, path)
        if path in self.soft and may_be_null:
            made["nullable"] = True
        rules = [*RUN_RULES.get(path, ())] if self.spec else []
        if made.get("pattern") == PATTERN:
            del made["pattern"]
            rules += DURATION_RULES
        if "not" in node and self.spec:
            rules.append(PLACE_RULE)
        if rules:
            made["x-kubernetes-validations"] = [dict(rule) for rule in rules]
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
        if not self.spec:
            return {"type": "string", "description": description, "pattern": USD_PATTERN}
        return {
            "description": description,
            INT_OR_STRING: True,
            "maxLength": 24,
            "x-kubernetes-validations": [dict(USD_RULE)],
        }

    def _default(self, made: dict[str, Any], path: str) -> None:
        """What the API server fills in; of a block only that it is there, its fields have defaults of their own."""
        default = made.pop("default", None)
        if path in self.soft:
            text = "the preset's" + ("" if default is None else f", otherwise {_plain(default)}")
            made["description"] = f"{made.get('description', '')} Not given: {text}."
        elif default is not None and self.spec:
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
            if self.spec:
                made.setdefault("maxItems", MOST_ITEMS)


def _without_nulls(value: Any) -> Any:
    """A default as the API server would store it."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_PHASES = get_args(Phase)
COLUMNS = (
    ("Phase", "string", ".status.phase", f"{', '.join(_PHASES[:-1])} or {_PHASES[-1]}.", 0),
    ("Layout", "string", ".status.layout", "Workers x accelerators per worker.", 0),
    ("Step", "integer", ".status.progress.step", "Steps that are done.", 0),
    ("ETA", "string", ".status.progress.eta", "When the training ends at this speed.", 0),
    ("Cost", "string", ".status.cost.usd", "US dollars so far.", 0),
    ("Age", "date", ".metadata.creationTimestamp", "Since when it exists.", 0),
    ("Message", "string", ".status.message", "What it waits for or why it ended.", 1),
)
"""Columns of kubectl get; the last number is 1 for -o wide."""


def custom_resource_definition() -> dict[str, Any]:
    """The CustomResourceDefinition of TrainingRun: structural, with defaults, rules and columns."""
    status = schema_of(RunStatus) | {"description": "What the run reports of itself; written by the operator alone."}
    columns = [
        {"name": name, "type": kind, "jsonPath": path, "description": text, "priority": priority}
        for name, kind, path, text, priority in COLUMNS
    ]
    schema = {
        "type": "object",
        "description": "A training of the generator, or the solution of an inverse problem.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": NAME_SCHEMA}},
            "spec": _spec_schema(),
            "status": status,
        },
    }
    version = {"subresources": {"status": {}}, "additionalPrinterColumns": columns}
    return _definition(KIND, PLURAL, {"shortNames": [SHORT_NAME], "categories": ["caloscale"]}, version, schema)


def progress_definition() -> dict[str, Any]:
    """The CustomResourceDefinition of TrainingProgress, in which worker 0 reports."""
    schema = {
        "type": "object",
        "description": "How far a training is; made by the operator, written by worker 0 of its run.",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "progress": schema_of(RunProgress),
        },
    }
    return _definition(PROGRESS_KIND, PROGRESS_PLURAL, {}, {}, schema)


def _definition(
    kind: str, plural: str, more_names: dict[str, Any], version: dict[str, Any], schema: dict[str, Any]
) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()} | more_names,
            "versions": [
                {"name": VERSION, "served": True, "storage": True, **version, "schema": {"openAPIV3Schema": schema}}
            ],
        },
    }


def _spec_schema() -> dict[str, Any]:
    """The run configuration of either workload; a rule refuses blocks of both.

    Blocks that only one of them has are not filled in: which there are says which workload it is.
    """
    training, solving = (schema_of(block, spec=True) for block in (Run, SolverRun))
    for one, other in ((training, solving), (solving, training)):
        for name in one["properties"].keys() - other["properties"].keys():
            one["properties"][name].pop("default", None)
    return {
        **training,
        "description": "The run configuration: what is trained or solved, on what, for how much.",
        "properties": {**solving["properties"], **training["properties"]},
    }


NAME_SCHEMA = {"type": "string", "maxLength": 40, "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"}
"""Names of pods and of their DNS entries begin with the run's, and are labels of at most 63 characters."""
