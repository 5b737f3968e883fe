"""The steps that all pipelines share: the run configuration decides where the training runs."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from kfp import dsl
from kfp.dsl.pipeline_context import Pipeline

from caloscale.cluster.workload.pod_template import SHARED
from caloscale.stages.pipeline_run import RUN_VARIABLE
from caloscale.storage.s3 import KUBEFLOW_KEY, KUBEFLOW_SECRET
from components.cost_report.component import cost_report
from components.gate.component import gate
from components.plan.component import plan
from components.preprocess.component import preprocess
from components.simulate.component import simulate
from components.train.component import train
from components.validate.component import validate

VOLUME = SHARED
"""Where a volume is mounted, as in the workers of a TrainingRun."""
LONGEST_RETRY = "520w"
"""Argo takes this limit for the time from the first start of a step to the end of its last attempt, and kills a healthy
attempt when it is over. The compiler's default is one hour. Ten years mean no limit."""
RETRIES = {
    "plan": 1,
    "simulate": 2,
    "preprocess": 2,
    "train": 5,
    "validate": 1,
    "solve": 5,
    "validate-solution": 1,
}
"""In a cluster a step fails because a node goes away, and again is right."""


class Resources(NamedTuple):
    """What a step requests, and what it may take at most; memory beyond the limit ends it."""

    cpu: str
    memory: str
    cpu_limit: str
    memory_limit: str


LIGHT = Resources("250m", "1Gi", "1", "4Gi")
"""Plan and report."""
HEAVY = Resources("1", "4Gi", "16", "32Gi")
"""Simulation (a process of a quarter GiB per core), shards, a training in its step, validation."""


def chain(
    form: Mapping[str, Any],
    fail_unless_accepted: Any = False,
    *,
    here: bool = False,
    volume_claim: str | None = None,
) -> None:
    """Plan, showers, training, validation, and at exit report and bill, also when one of them failed.

    form: the entries of `FORM` with run, workspace and resume. fail_unless_accepted: a model that is not accepted fails
    the run. here: on one's own machine a step is not tried again (what fails there fails again, after a wait), and the
    training stays in its step, whatever the run configuration contains. volume_claim: mounted by all steps.
    """
    bill = cost_report(workspace=form["workspace"], resume=form["resume"]).set_display_name("Report and bill")
    bill.set_caching_options(False)
    if not here:
        in_cluster(bill, LIGHT, volume_claim=volume_claim)
    with dsl.ExitHandler(bill, name="Run"):
        judged = steps(form, here=here, volume_claim=volume_claim)
        if not here:  # Kubeflow's local runner has no conditions
            show_verdict(judged, fail_unless_accepted)


def steps(form: Mapping[str, Any], *, here: bool = False, volume_claim: str | None = None) -> Any:
    """Plan, showers, training and validation, which is returned.

    Simulation and preparation are given what their results depend on and nothing else, as it is the key by which the
    server finds them in its cache.
    """
    planned = plan(**form).set_display_name("Plan machines")
    planned.set_caching_options(False)  # prices are those of the day
    run, folder, workspace = planned.outputs["configuration"], planned.outputs["folder"], form["workspace"]
    simulated = simulate(simulation=planned.outputs["simulation"], workspace=workspace)
    simulated.set_display_name("Simulate showers")
    data, showers = planned.outputs["data"], simulated.outputs["showers"]
    reading = planned.outputs["reading"]
    prepared = preprocess(data=data, reading=reading, workspace=workspace, showers=showers)
    prepared.set_display_name("Prepare showers")
    dataset = prepared.outputs["dataset"]
    trained = train(run=run, folder=folder, dataset=dataset).set_display_name("Train")
    trained.set_caching_options(False)  # what is done is in the folder of the run, which is another each time
    judged = validate(run=run, folder=folder, dataset=dataset, trained=trained.outputs["trained"])
    judged.set_display_name("Validate against Monte Carlo")
    judged.set_caching_options(False)
    if not here:
        trained.set_accelerator_type(planned.outputs["gpu_resource"]).set_accelerator_limit(
            planned.outputs["gpu_count"]
        )
        for task in (planned, simulated, prepared, trained, judged):
            resources = LIGHT if task is planned else HEAVY
            in_cluster(task, resources, retries=RETRIES[task.name], volume_claim=volume_claim)
    return judged


def show_verdict(judged: Any, fail_unless_accepted: Any) -> None:
    """A step named after the verdict: of three only one runs, so that the graph shows which it is."""
    decision, verdict = judged.outputs["decision"], judged.outputs["verdict"]

    def shown(name: str) -> None:
        task = gate(decision=decision, fail_unless_accepted=fail_unless_accepted, verdict=verdict)
        task.set_display_name(name).set_caching_options(False)
        in_cluster(task, LIGHT)

    with dsl.If(decision == "accepted", name="Accepted"):
        shown("Accepted")
    with dsl.Elif(decision == "rejected", name="Rejected"):
        shown("Rejected")
    with dsl.Else(name="Undecided"):
        shown("Undecided or not assessed")
    # The graph shows the three as one node, which the SDK names condition-branches-2.
    Pipeline.get_default_pipeline().groups[-1].groups[-1].display_name = "Verdict"


def in_cluster(task: Any, resources: Resources, *, retries: int = 0, volume_claim: str | None = None) -> None:
    """Requests and limits of the pod of a step, tries again, its environment: the id of the pipeline run and the key of
    Kubeflow's own store, where there is one; and a volume, at `VOLUME`.
    """
    task.set_cpu_request(resources.cpu).set_memory_request(resources.memory)
    task.set_cpu_limit(resources.cpu_limit).set_memory_limit(resources.memory_limit)
    if retries:
        task.set_retry(retries, "60s", 2.0, LONGEST_RETRY)
    # As kfp-kubernetes writes them. Kubeflow Pipelines labels the pods of a run with its id.
    task.platform_config["kubernetes"] = {
        "fieldPathAsEnv": [{"name": RUN_VARIABLE, "fieldPath": "metadata.labels['pipeline/runid']"}],
        "secretAsEnv": [
            {
                "secretName": KUBEFLOW_SECRET,
                "secretNameParameter": _constant(KUBEFLOW_SECRET),
                "keyToEnv": [{"secretKey": entry, "envVar": name} for entry, name in KUBEFLOW_KEY.items()],
                "optional": True,
            }
        ],
    }
    if volume_claim:
        mount = {"mountPath": VOLUME, "constant": volume_claim, "pvcNameParameter": _constant(volume_claim)}
        task.platform_config["kubernetes"]["pvcMount"] = [mount]


def _constant(text: str) -> dict[str, Any]:
    return {"runtimeValue": {"constant": text}}
