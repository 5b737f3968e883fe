"""The custom resource TrainingRun, generated from the run configuration and the status."""

from typing import Any

from caloscale.cluster.api.rules import RUN_RULES
from caloscale.cluster.api.schema import schema_of
from caloscale.cluster.names import GROUP, KIND, PLURAL, PROGRESS_KIND, PROGRESS_PLURAL, SHORT_NAME, VERSION
from caloscale.spec import Run, SolverRun
from caloscale.status import RunProgress, RunStatus

COLUMNS = (
    (
        "Phase",
        "string",
        ".status.phase",
        "Pending, Waiting, Starting, Running, Recovering, Suspending, Suspended, Succeeded or Failed.",
        0,
    ),
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
    spec = _spec_schema()
    status = schema_of(RunStatus, defaults=False)
    status["description"] = "What the run reports of itself; written by the operator alone."
    version = {
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "description": text, "priority": priority}
            for name, kind, path, text, priority in COLUMNS
        ],
    }
    schema = {
        "type": "object",
        "description": "A training of the generator, or the solution of an inverse problem.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            # its name is the start of the names of pods, which are labels of at most 63
            "metadata": {"type": "object", "properties": {"name": NAME_SCHEMA}},
            "spec": spec,
            "status": status,
        },
    }
    return _definition(KIND, PLURAL, {"shortNames": [SHORT_NAME], "categories": ["caloscale"]}, version, schema)


def progress_definition() -> dict[str, Any]:
    """The CustomResourceDefinition of TrainingProgress, in which worker 0 reports."""
    progress = schema_of(RunProgress, defaults=False)
    schema = {
        "type": "object",
        "description": "How far a training is; made by the operator, written by worker 0 of its run.",
        "properties": {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}},
    }
    schema["properties"] |= {"progress": progress}  # type: ignore[operator]
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
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                **more_names,
            },
            "versions": [
                {"name": VERSION, "served": True, "storage": True, **version, "schema": {"openAPIV3Schema": schema}}
            ],
        },
    }


def _spec_schema() -> dict[str, Any]:
    """The run configuration of either workload; a rule refuses blocks of both.

    Blocks that only one of them has are not filled in: which there are says which workload it is.
    """
    training, solving = (schema_of(block, RUN_RULES, preset=True) for block in (Run, SolverRun))
    for one, other in ((training, solving), (solving, training)):
        for name in one["properties"].keys() - other["properties"].keys():
            one["properties"][name].pop("default", None)
    return {
        **training,
        "description": "The run configuration: what is trained or solved, on what, for how much.",
        "properties": {**solving["properties"], **training["properties"]},
    }


NAME_SCHEMA = {"type": "string", "maxLength": 40, "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"}
"""Names of pods and of their DNS entries begin with the run's."""
