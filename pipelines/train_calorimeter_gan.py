"""The calorimeter GAN from showers to a released generator, its report and its bill.

python -m pipelines.train_calorimeter_gan --preset flow           # here, without a cluster
python -m pipelines.train_calorimeter_gan --compile OUT.yaml      # for the Kubeflow UI
python -m pipelines.train_calorimeter_gan --on-cluster --compile OUT.yaml      # the default trains as a TrainingRun
"""

import inspect
import json
import re
import sys
from collections.abc import Mapping
from typing import Any

from kfp import dsl

from caloscale.spec import FORM
from caloscale.spec.model import FIRST_PRESET
from pipelines.chain import VOLUME, chain
from pipelines.options import command, parser_of, refuse_unused, write_pipeline

CLAIM = r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
"""Pattern of the name of a PersistentVolumeClaim."""
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "train-calorimeter-gan": {"preset": FIRST_PRESET, "run": {}},
    "train-on-cluster": {"preset": "variable-angle", "run": {"hardware": {}}},
}
"""What a form begins with, by the name under which the pipeline is compiled."""
EXAMPLE = {"data": {"showers": 3000}, "train": {"maxMinutes": 20}}
"""For the entry run, to paste."""
OTHERS: Mapping[str, tuple[type, Any, str]] = {
    "run": (
        dict,
        {},
        "Everything else of the run configuration, beneath the entries of the form, as JSON. With a block hardware the "
        "training becomes a TrainingRun on the machines that it names, or, when it is empty, that the planner chooses; "
        "without one, and without accelerator, nodes and capacity_type, it runs in its step.",
    ),
    "workspace": (
        str,
        "",
        "gs://bucket/prefix (also s3:// and minio://) in which each run has a folder, named after its id, with "
        "records, checkpoints and report, or the path of a volume that all steps mount. Empty: beside the artifacts of "
        "the run.",
    ),
    "resume": (
        str,
        "",
        "Id of an earlier run in the same workspace, whose folder is continued, with the same networks and data. "
        "Empty: a new run, also of a clone and of each run of a schedule.",
    ),
    "fail_unless_accepted": (
        bool,
        False,
        "Fail the run unless its model is accepted. Otherwise a rejected model is a run that succeeded, with a step "
        '"Rejected" in its graph.',
    ),
}
"""Entries of the form beside `FORM`: type, default, description."""


def build(here: bool = False, name: str = "train-calorimeter-gan", volume_claim: str | None = None) -> Any:
    """The pipeline; `here`: as one runs it on one's own machine. name: of `DEFAULTS`. volume_claim: of a volume that
    all steps mount, and the workers of a TrainingRun, with the workspace.
    """
    entries = {key: (field.kind, field.empty, field.description) for key, field in FORM.items()}
    entries |= OTHERS
    defaults = {key: DEFAULTS[name].get(key, default) for key, (_, default, _) in entries.items()}
    if volume_claim:
        defaults["workspace"] = VOLUME
        defaults["run"] = {**defaults["run"], "cluster": {"volumeClaim": volume_claim}}

    def train_calorimeter_gan(*given: Any) -> None:
        form = dict(zip(entries, given, strict=True))
        chain(form, form.pop("fail_unless_accepted"), here=here, volume_claim=volume_claim)

    train_calorimeter_gan.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(key, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=defaults[key], annotation=kind)
            for key, (kind, _, _) in entries.items()
        ]
    )
    described = "\n".join(f"    {key}: {text}" for key, (_, _, text) in entries.items())
    train_calorimeter_gan.__doc__ = f"Train a calorimeter GAN and judge it.\n\nArgs:\n{described}"
    pipeline = dsl.pipeline(name=name, display_name="Train a calorimeter GAN", description=_description(entries))
    return pipeline(train_calorimeter_gan)


def _description(entries: Mapping[str, tuple[type, Any, str]]) -> str:
    """What the UI shows beside the form, which has names alone: the first sentence about each entry."""
    lines = [f"{key}: {text.partition('. ')[0].removesuffix('.')}." for key, (_, _, text) in entries.items()]
    return "\n".join(
        [
            "Simulate or read showers, train the networks, validate them against Monte Carlo, report and bill.",
            "The entries of the form; empty, 0 and -1 mean: as in run, or else in the preset.",
            *lines,
            f"An example for run: {json.dumps(EXAMPLE)}",
        ]
    )


@command
def main(arguments: list[str] | None = None) -> int:
    """Compile the pipeline, or run it on this machine; the exit code is that of the step that failed."""
    parser = parser_of(__doc__)
    parser.add_argument("--on-cluster", action="store_true", help="with --compile: trains as a TrainingRun by default")
    parser.add_argument("--volume-claim", metavar="NAME", help="with --compile: a claim that all steps mount")
    given = parser.parse_args(arguments)
    refuse_unused(parser, given, "on_cluster", "volume_claim")
    if given.volume_claim and not re.fullmatch(CLAIM, given.volume_claim):
        parser.error(f"--volume-claim: {given.volume_claim!r} is no name of a PersistentVolumeClaim")
    if given.compile:
        name = "train-on-cluster" if given.on_cluster else "train-calorimeter-gan"
        write_pipeline(build(name=name, volume_claim=given.volume_claim), given.compile)
        return 0
    from pipelines import local

    return local.run_here(given, build)


if __name__ == "__main__":
    sys.exit(main())
