"""Sections of a report about the run itself: training, speed, provenance."""

from collections.abc import Mapping, Sequence
from typing import Any

from caloscale.profiling.result import Profile
from caloscale.report.blocks import Cell, Fact, Facts, Figure, Section, Table, Text, Values
from caloscale.report.run_figures import profile_table
from caloscale.spec.block import Block


class StageSummary(Block):
    """One stage."""

    seconds: float
    """Wall time, s."""
    core_seconds: float
    """Processor time, s."""
    peak_memory_mib: float
    """Largest resident memory, MiB."""
    outcome: str
    """succeeded, failed or interrupted."""


def training_section(figures: Sequence[Figure], training: Mapping[str, Any]) -> Section | None:
    """What was trained, with its figures; None where nothing was. training: names and values."""
    if not figures and not training:
        return None
    return Section("Training", (*((Values(training),) if training else ()), *figures))


def profile_section(profile: Profile, figures: Sequence[Figure]) -> Section:
    """Where the time of a training step goes."""
    facts = Facts(
        (
            Fact(
                "achieved by the step",
                f"{profile.gflops:.3g} GFLOP/s",
                f"{profile.gflop_per_step:.3g} GFLOP in {profile.seconds_per_step:.3g} s",
            ),
            Fact(
                "in convolutions and matrix products",
                f"{profile.matrix_gflops:.3g} GFLOP/s",
                f"in the {100 * profile.matrix_share:.0f} % of the busy time that they take",
            ),
            Fact(
                "peak of the machine",
                f"{profile.peak_gflops:.3g} GFLOP/s",
                f"a large matrix product in {profile.precision}, measured",
            ),
        )
    )
    return Section("Profile of the training step", (Text(profile.statement), facts, profile_table(profile), *figures))


def speed_section(speeds: Sequence[Fact], stages: Mapping[str, StageSummary]) -> Section:
    """How fast the run was, and what its stages took."""
    rows = tuple(
        (
            name,
            Cell(stage.outcome, "" if stage.outcome == "succeeded" else "bad"),
            f"{stage.seconds:.1f}",
            f"{stage.core_seconds:.1f}",
            f"{stage.peak_memory_mib:.0f}" if stage.peak_memory_mib else "",
        )
        for name, stage in stages.items()
    )
    columns = ("stage", "outcome", "wall seconds", "core seconds", "peak memory, MiB")
    facts = (Facts(tuple(speeds)),) if speeds else ()
    return Section("Speed", (*facts, *((Table("Stages of the run", columns, rows),) if rows else ())))


def provenance_section(provenance: Mapping[str, Any]) -> Section:
    """What is needed to repeat the run: nested names and values."""
    return Section("Provenance", (Values(provenance),))
