"""The custom resource TrainingRun, generated from the run configuration and the status."""

from __future__ import annotations

from typing import Any

from caloscale.cluster.api.rules import RUN_RULES
from caloscale.cluster.api.schema import schema_of
from caloscale.cluster.names import GROUP, KIND, PLURAL, SHORT_NAME, VERSION
from caloscale.spec import Run, SolverRun
from caloscale.status import RunStatus

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
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": [SHORT_NAME],
                "categories": ["caloscale"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path, "description": text, "priority": priority}
                        for name, kind, path, text, priority in COLUMNS
                    ],
                    "schema": {
                        "openAPIV3Schema": {
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
                    },
                }
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
