"""The steps that all pipelines share, around the one in which they differ: where the training runs."""

from collections.abc import Callable
from typing import Any

from kfp import dsl

from components.cost_report.component import cost_report
from components.plan.component import plan
from components.preprocess.component import preprocess
from components.simulate.component import simulate
from components.validate.component import validate


def chain(run: Any, workspace: Any, train: Callable[[Any], Any], *, train_retries: int, retries: bool = True) -> None:
    """Plan, showers, training, validation, and at exit report and bill, also when one of them failed.

    train: makes the training's task from the dataset that was prepared; its output `trained` is validated.
    retries: whether steps that fail are tried again (the training `train_retries` times).
    """
    bill = cost_report(run=run, workspace=workspace).set_display_name("Report and bill")
    bill.set_caching_options(False)
    with dsl.ExitHandler(bill, name="Run"):
        planned = plan(run=run, workspace=workspace).set_display_name("Plan machines")
        planned.set_caching_options(False)  # prices are those of the day
        simulated = simulate(run=run, workspace=workspace).set_display_name("Simulate showers")
        prepared = preprocess(run=run, workspace=workspace, showers=simulated.outputs["showers"])
        prepared.set_display_name("Prepare showers")
        trained = train(prepared.outputs["dataset"]).after(planned)
        judged = validate(
            run=run,
            workspace=workspace,
            dataset=prepared.outputs["dataset"],
            trained=trained.outputs["trained"],
        )
        judged.set_display_name("Validate against Monte Carlo")
        if retries:
            attempts = ((planned, 1), (simulated, 2), (prepared, 2), (trained, train_retries), (judged, 1))
            for task, count in attempts:
                task.set_retry(num_retries=count, backoff_duration="60s", backoff_factor=2.0)
