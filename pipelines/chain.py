"""The steps that all pipelines share: the run configuration decides where the training runs."""

from typing import Any, NamedTuple

from kfp import dsl

from components.cost_report.component import cost_report
from components.gate.component import gate
from components.plan.component import plan
from components.preprocess.component import preprocess
from components.simulate.component import simulate
from components.train.component import train
from components.validate.component import validate

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


def chain(run: Any, workspace: Any, fail_unless_accepted: Any = False, *, here: bool = False) -> None:
    """Plan, showers, training, validation, and at exit report and bill, also when one of them failed.

    fail_unless_accepted: a model that is not accepted fails the run. here: on one's own machine a step is not tried
    again (what fails there fails again, after a wait), and the training stays in its step, whatever the run
    configuration contains.
    """
    pipeline_id = "" if here else dsl.PIPELINE_JOB_ID_PLACEHOLDER
    bill = cost_report(run=run, workspace=workspace, pipeline_id=pipeline_id).set_display_name("Report and bill")
    bill.set_caching_options(False)
    if not here:
        limit(bill, LIGHT)
    with dsl.ExitHandler(bill, name="Run"):
        judged = steps(run, workspace, pipeline_id, here=here)
        if not here:  # Kubeflow's local runner has no conditions
            show_verdict(judged, fail_unless_accepted)


def steps(run: Any, workspace: Any, pipeline_id: Any, *, here: bool = False) -> Any:
    """Plan, showers, training and validation, which is returned. pipeline_id: names the TrainingRun."""
    planned = plan(run=run, workspace=workspace).set_display_name("Plan machines")
    planned.set_caching_options(False)  # prices are those of the day
    simulated = simulate(run=run, workspace=workspace).set_display_name("Simulate showers")
    simulated.after(planned)  # a run that is refused, for its budget for example, simulates nothing
    prepared = preprocess(run=run, workspace=workspace, showers=simulated.outputs["showers"])
    prepared.set_display_name("Prepare showers")
    dataset = prepared.outputs["dataset"]
    trained = train(run=run, workspace=workspace, pipeline_id=pipeline_id, dataset=dataset)
    trained.set_display_name("Train").after(planned)
    trained.set_caching_options(False)  # what is done is in the workspace, and another run has another id
    judged = validate(run=run, workspace=workspace, dataset=dataset, trained=trained.outputs["trained"])
    judged.set_display_name("Validate against Monte Carlo")
    judged.set_caching_options(False)  # a key holds the id of the trained artifact, which is another each time
    if not here:
        for task in (planned, simulated, prepared, trained, judged):
            task.set_retry(RETRIES[task.name], "60s", 2.0, LONGEST_RETRY)
            limit(task, LIGHT if task is planned else HEAVY)
    return judged


def show_verdict(judged: Any, fail_unless_accepted: Any) -> None:
    """A step named after the verdict: of three only one runs, so that the graph shows which it is."""
    decision, verdict = judged.outputs["decision"], judged.outputs["verdict"]

    def shown(name: str) -> None:
        task = gate(decision=decision, fail_unless_accepted=fail_unless_accepted, verdict=verdict)
        task.set_display_name(name).set_caching_options(False)
        limit(task, LIGHT)

    with dsl.If(decision == "accepted", name="Accepted"):
        shown("Accepted")
    with dsl.Elif(decision == "rejected", name="Rejected"):
        shown("Rejected")
    with dsl.Else(name="Undecided"):
        shown("Undecided or not assessed")


def limit(task: Any, resources: Resources) -> None:
    """Requests and limits of the pod of a step."""
    task.set_cpu_request(resources.cpu).set_memory_request(resources.memory)
    task.set_cpu_limit(resources.cpu_limit).set_memory_limit(resources.memory_limit)
