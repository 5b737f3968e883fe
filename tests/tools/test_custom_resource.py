"""The API server's view of a document and the parser's are one.

The server's defaulting and pruning are written here a second time, from the rules of structural schemas; jsonschema's
draft 4 has the same exclusive bounds as OpenAPI v3.0. CEL is tried on a real API server (tests/control_plane).
"""

import copy
import json
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from caloscale.errors import ConfigurationError
from caloscale.spec import (
    PRESETS,
    SOLVER_PRESETS,
    AnyRun,
    Run,
    SolverRun,
    build_any_run,
    build_run,
    dump_run,
    load_preset,
    load_run,
    load_solver_run,
)
from caloscale.status import RunCost, RunStatus
from tools.custom_resource import DURATION_RULES, custom_resource_definition, schema_of

VERSION = custom_resource_definition()["spec"]["versions"][0]
SPEC = VERSION["schema"]["openAPIV3Schema"]["properties"]["spec"]
WORDS = st.text("abcx/:-", min_size=1, max_size=12)


def values(schema: dict[str, Any], path: str = "") -> st.SearchStrategy[Any]:
    """Documents that the structural schema allows."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "x-kubernetes-int-or-string" in schema:
        return st.one_of(st.integers(1, 10**6), st.sampled_from(["400", "99.50", "0.5", "1250.125"]))
    if "type" not in schema:
        assert path == ".data.particle"
        return st.sampled_from(["e-", "gamma", ["e-"], ["pi-", "gamma"], "muon", ["e-", "e-"], 3])
    match schema["type"]:
        case "object" if "properties" not in schema:
            return st.dictionaries(WORDS, st.integers(), max_size=2)
        case "object":
            required = schema.get("required", ())
            inner = {name: values(value, f"{path}.{name}") for name, value in schema["properties"].items()}
            return st.fixed_dictionaries(
                {name: inner[name] for name in required},
                optional={name: value for name, value in inner.items() if name not in required},
            )
        case "array":
            least, most = schema.get("minItems", 0), schema.get("maxItems", 3)
            return st.lists(values(schema["items"], path), min_size=least, max_size=min(most, max(least, 3)))
        case "boolean":
            return st.booleans()
        case "integer":
            low = schema.get("minimum", 0) + (1 if schema.get("exclusiveMinimum") else 0)
            return st.integers(low, min(schema.get("maximum", low + 50), low + 50))
        case "number":
            low, high = float(schema.get("minimum", 0)), float(schema.get("maximum", 1000))
            return st.floats(
                low,
                high,
                exclude_min=bool(schema.get("exclusiveMinimum")),
                exclude_max=bool(schema.get("exclusiveMaximum")),
            )
        case "string":
            if schema.get("x-kubernetes-validations") == DURATION_RULES:
                return st.sampled_from(["90s", "10m", "6h", "1h30m", "3650d", "0d1s"])
            if path.endswith((".environment", ".objective", ".optimizer")):
                return st.just("package.module.Class")
            if path.endswith("dataSets.name"):
                return st.sampled_from(["proxy", "deep_2", "X-1"])
            if path.endswith((".workspace", ".dataset", ".uri")):
                return st.sampled_from(["gs://b/run", "/workspace/run"])
            if path.endswith("topology"):
                return st.sampled_from(["2x2", "4x4", "2x2x1"])
            return WORDS
    raise AssertionError(schema)


def defaulted(document: Any, schema: dict[str, Any]) -> Any:
    """What the API server stores: nulls pruned where they may not be, then defaults, outside in."""
    if schema.get("type") == "array":
        return [defaulted(item, schema["items"]) for item in document]
    if schema.get("type") != "object" or "properties" not in schema:
        return document
    known = schema["properties"]
    stored = {
        k: v for k, v in document.items() if k in known and not (v is None and not known[k].get("nullable", False))
    }
    for name, inner in known.items():
        if name not in stored and "default" in inner:
            stored[name] = copy.deepcopy(inner["default"])
        if stored.get(name) is not None:
            stored[name] = defaulted(stored[name], inner)
    return stored


def as_draft4(schema: dict[str, Any]) -> dict[str, Any]:
    """``nullable`` is OpenAPI's word for a second type."""
    made = {key: value for key, value in schema.items() if not key.startswith("x-")}
    if made.pop("nullable", False):
        made["type"] = [made["type"], "null"]
    if "properties" in made:
        made["properties"] = {name: as_draft4(inner) for name, inner in made["properties"].items()}
    if "items" in made:
        made["items"] = as_draft4(made["items"])
    return made


DRAFT4 = jsonschema.Draft4Validator(as_draft4(SPEC))


def parsed(document: dict[str, Any]) -> AnyRun | None:
    try:
        return build_any_run(document)
    except ConfigurationError:
        return None


def of_one_workload(document: dict[str, Any], solves: bool) -> dict[str, Any]:
    """Without the blocks of the other one: a rule refuses both together."""
    others = ("model", "data", "train", "checkpoint", "validation") if solves else ("solver",)
    kept = {name: value for name, value in document.items() if name not in others}
    return {"solver": {}, **kept} if solves else kept


DOCUMENTS = st.builds(of_one_workload, values(SPEC), st.booleans())


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(DOCUMENTS)
def test_defaults_of_the_server_change_no_run(document: dict[str, Any]) -> None:
    run = parsed(document)
    stored = defaulted(document, SPEC)
    assert parsed(stored) == run
    DRAFT4.validate(stored)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(DOCUMENTS)
def test_what_the_schema_allows_only_a_rule_can_refuse(document: dict[str, Any]) -> None:
    DRAFT4.validate(document)
    try:
        if "solver" in document:
            SolverRun.model_validate(document)
        else:
            Run.model_validate({"data": {"showers": 1}, **document})
    except ValidationError as problems:
        assert {problem["type"] for problem in problems.errors()} <= {"value_error"}


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), DOCUMENTS)
def test_a_value_out_of_bounds_is_refused_by_both(data: st.DataObject, document: dict[str, Any]) -> None:
    leaves = list(_bounded(document, SPEC))
    if not leaves:
        return
    holder, name, schema = data.draw(st.sampled_from(leaves))
    if "enum" in schema:
        holder[name] = "nothing-of-the-kind"
    elif "maximum" in schema and data.draw(st.booleans()):
        holder[name] = schema["maximum"] if schema.get("exclusiveMaximum") else schema["maximum"] + 1
    elif "minimum" in schema:
        holder[name] = schema["minimum"] if schema.get("exclusiveMinimum") else schema["minimum"] - 1
    else:
        return
    assert not DRAFT4.is_valid(document)
    with pytest.raises(ConfigurationError):
        build_any_run(document)


def _bounded(document: Any, schema: dict[str, Any]) -> Any:
    for name, inner in schema.get("properties", {}).items():
        if name not in document:
            continue
        if inner.get("type") == "object":
            yield from _bounded(document[name], inner)
        elif {"enum", "minimum", "maximum"} & set(inner):
            yield document, name, inner


@pytest.mark.parametrize("preset", [*PRESETS, *SOLVER_PRESETS])
def test_presets_and_resolved_documents_pass_unchanged(preset: str) -> None:
    """What the server fills in replaces no value of a preset, and makes no training of a run of the solver."""
    solves = preset in SOLVER_PRESETS
    run = (load_solver_run if solves else load_run)(preset=preset, overrides=["hardware={}"])
    named = {"solver" if solves else "model": {"preset": preset}}
    for document in (load_preset(preset), yaml.safe_load(dump_run(run)), named):
        stored = defaulted({**document, "hardware": {}}, SPEC)
        DRAFT4.validate(stored)
        assert build_any_run(stored) == run
        assert not (solves and {"model", "train", "checkpoint"} & set(stored))


def test_it_is_structural_and_every_field_has_a_description() -> None:
    """No references, unions or references to other files are left; every node has one type or a keyword for several."""

    def walk(schema: dict[str, Any], path: str) -> None:
        several = {"x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"} & schema.keys()
        assert isinstance(schema.get("type"), str) or len(several) == 1, path
        assert not {"$ref", "anyOf", "oneOf", "allOf", "title", "prefixItems", "const", "$defs"} & set(schema), path
        assert not ("properties" in schema and "additionalProperties" in schema), path
        assert schema.get("description") or path.endswith("[]"), path
        for name, inner in schema.get("properties", {}).items():
            walk(inner, f"{path}.{name}")
        if "items" in schema:
            walk(schema["items"], f"{path}[]")

    walk(SPEC, "spec")
    walk(VERSION["schema"]["openAPIV3Schema"]["properties"]["status"], "status")


def test_unions_are_refused() -> None:
    class Two(BaseModel):
        either: int | str

    with pytest.raises(ValueError, match="union"):
        schema_of(Two)


def test_money_is_a_decimal_string() -> None:
    """As the conventions of Kubernetes ask for; nothing is lost on the way, or each reconcile would see a change."""
    for usd, text in ((400.0, "400"), (99.5, "99.5"), (1e-7, "0.0000001"), (24.960000000000004, "24.960000000000004")):
        cost = RunCost(usd=usd)
        made = json.loads(cost.model_dump_json(by_alias=True, exclude_none=True))
        assert made["usd"] == text and RunCost.model_validate(made) == cost
    run = build_run({"budget": {"maxUsd": "99.50"}})
    assert run.budget.max_usd == 99.5 and yaml.safe_load(dump_run(run))["budget"]["maxUsd"] == "99.5"


def test_a_status_survives_the_cluster() -> None:
    text = (
        '{"phase": "Running", "attempts": [{"number": 1, "job": "r-1", "nodes": 2, "workers": 2,'
        ' "launched": "2026-11-21T10:00:00Z"}], "aNewerField": 1}'
    )
    status = RunStatus.model_validate_json(text)
    again = RunStatus.model_validate_json(status.model_dump_json(by_alias=True, exclude_none=True))
    assert again == status and status.live is status.attempts[0]
