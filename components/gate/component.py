"""Kubeflow component: the verdict as a step of its own."""

from kfp import dsl

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def gate(decision: str, fail_unless_accepted: bool, verdict: dsl.Input[dsl.Markdown]) -> None:
    """Show the verdict in the graph; where it is asked for, fail the run unless the model is accepted.

    Args:
        decision: accepted, rejected, undecided or not assessed.
        fail_unless_accepted: Fail this step, and with it the run, unless the model is accepted.
        verdict: The decision, each gate, and the observables.
    """
    from pathlib import Path

    from caloscale import errors

    errors.show_message_alone()
    print(Path(verdict.path).read_text(encoding="utf-8"))
    if fail_unless_accepted and decision != "accepted":
        raise errors.NotAcceptedError(decision)
