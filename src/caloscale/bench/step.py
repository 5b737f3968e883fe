"""The bench of the training step."""

from __future__ import annotations

from contextlib import ExitStack

from caloscale.bench.machine import describe_machine
from caloscale.bench.results import StepBench, StepReference
from caloscale.bench.rounds import Contender, interleave, ratios
from caloscale.spec import Run

SECONDS = 110.0
"""Of measuring, about; starting and compiling come to it."""
PRODUCT = "product"


def bench_step(run: Run, batch: int, *, rounds: int | None = None, seconds: float = SECONDS) -> StepBench:
    """Time our step and the reference on batches of ``batch`` showers. Raises BenchError when one of them fails."""
    machine = describe_machine()
    configuration = run.model_dump(mode="json", by_alias=True)
    precision = run.train.precision
    plain = run.model_copy(update={"train": run.train.model_copy(update={"precision": "float32"})})
    with ExitStack() as stack:
        ours, reference, product = (
            stack.enter_context(Contender(name, name, settings))
            for name, settings in (
                ("step", {"configuration": configuration, "batch": batch}),
                ("reference-step", {"configuration": plain.model_dump(mode="json", by_alias=True), "batch": batch}),
                (PRODUCT, {"precision": precision}),
            )
        )
        interleave([ours, reference, product], f"bench step {run.model.preset}", seconds, rounds)
    own, plainly, faster = ours.timing(1 / batch), reference.timing(1 / batch), ratios(reference, ours)
    return StepBench(
        preset=run.model.preset,
        precision=precision,
        batch=batch,
        seconds_per_event=own.median,
        spread=own,
        reference=StepReference(
            seconds_per_event=plainly.median,
            spread=plainly,
            gflops=1e-9 * reference.facts["flopPerEvent"] / plainly.median,
            peak_memory_mib=reference.peak_memory_mib,
        ),
        ratio=faster.median,
        ratio_spread=(faster.low, faster.high),
        gflops=1e-9 * ours.facts["flopPerEvent"] / own.median,
        peak_gflops=1e-9 * product.facts["flop"] / min(product.seconds),
        peak_memory_mib=ours.peak_memory_mib,
        machine=machine,
    )
