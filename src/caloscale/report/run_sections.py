"""Sections of a report about the run itself: training, speed, provenance."""

from collections.abc import Mapping, Sequence
from typing import Any

from caloscale.profiling.result import Profile
from caloscale.report.blocks import Block, Cell, Fact, Facts, Figure, Section, Table, Text, Values
from caloscale.report.run_figures import StageUse, profile_table


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


def speed_section(speeds: Sequence[Fact], stages: Sequence[StageUse], figures: Sequence[Figure]) -> Section:
    """How fast the run was, and what its stages took."""
    rows = tuple(
        (
            stage.name,
            Cell(stage.outcome, "" if stage.outcome == "succeeded" else "bad"),
            f"{stage.seconds:.1f}",
            f"{stage.core_seconds:.1f}",
            f"{stage.peak_memory_mib:.0f}" if stage.peak_memory_mib else "",
        )
        for stage in stages
    )
    columns = ("stage", "outcome", "wall seconds", "core seconds", "peak memory, MiB")
    blocks: list[Block] = [Facts(tuple(speeds))] if speeds else []
    if rows:
        blocks.append(Table("Stages of the run", columns, rows))
    return Section("Speed", (*blocks, *figures))


def provenance_section(provenance: Mapping[str, Any]) -> Section:
    """What is needed to repeat the run: nested names and values."""
    return Section("Provenance", (Values(provenance),))
