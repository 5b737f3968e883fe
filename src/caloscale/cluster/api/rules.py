"""What the API server checks of a spec beyond types: CEL rules, each with the remedy in its message.

The messages are those of the parser (`caloscale.spec`), so that users read the same from both; a test holds
the two together.
"""

from typing import NamedTuple

from caloscale.spec.budget import USD_PATTERN
from caloscale.spec.cluster import GRACE_SECONDS
from caloscale.spec.values import MOST_DAYS


class Rule(NamedTuple):
    """A CEL rule of a schema."""

    rule: str
    """What must be true."""
    message: str
    """What a person reads when it is not: problem and remedy."""


_SECONDS = " + ".join(
    f"int('0' + self.find('[0-9]+{unit}').replace('{unit}', '')) * {seconds}"
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
)
DURATION_RULES = [
    Rule(
        "self.matches('^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && self.matches('[1-9]')",
        "is not a duration; remedy: write it as 90s, 10m, 6h, 1h30m or 2d",
    ),
    Rule(  # numbers of more digits than any such time has would be none for int()
        f"!self.matches('[1-9][0-9]{{9}}') && {_SECONDS} <= {MOST_DAYS * 86_400}",
        f"is longer than ten years; remedy: write {MOST_DAYS}d or less",
    ),
]
USD_RULE = Rule(
    f"type(self) == int ? self > 0 : self.matches('{USD_PATTERN}') && self.matches('[1-9]')",
    'is not an amount of US dollars; remedy: write it as 400 or "99.50", with quotation marks where it has cents',
)
IMMUTABLE = ("model", "data", "train", "validation", "hardware", "solver")
"""Blocks that stay what they are: checkpoints, placement and bill belong to them."""


TRAINING = ("model", "data", "train", "checkpoint", "validation")
"""Blocks of a training that a solver run does not have."""


def _unchanged(field: str, why: str) -> Rule:
    """A field that is set once: an edit would be ignored, or lose what is stored there."""
    return Rule(
        f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})",
        f"{field} cannot be changed: {why}; remedy: make another TrainingRun",
    )


def _set_once(block: str, field: str, why: str) -> Rule:
    """The same of a text in a block that may be absent."""
    now, before = (
        f"(has({of}.{block}) && has({of}.{block}.{field}) ? {of}.{block}.{field} : '')" for of in ("self", "oldSelf")
    )
    return Rule(f"{now} == {before}", f"{block}.{field} cannot be changed: {why}; remedy: make another TrainingRun")


_CHIPS = (
    "(self.topology.split('x').size() == 2 ? "
    "int(self.topology.split('x')[0]) * int(self.topology.split('x')[1]) : "
    "int(self.topology.split('x')[0]) * int(self.topology.split('x')[1]) * int(self.topology.split('x')[2]))"
)


def _with(fields: str, rule: str) -> str:
    """A rule that applies only where all its fields are given."""
    return f"!({' && '.join(f'has(self.{field})' for field in fields.split())}) || {rule}"


_ALIGNED = "self.placement != 'Aligned' || "
HARDWARE = [
    Rule(
        _with("count perNode", "self.count % self.perNode == 0"),
        "count is not a multiple of perNode; remedy: change one of the two, or leave one out",
    ),
    Rule(
        _with("count acceleratorsPerWorker", "self.count % self.acceleratorsPerWorker == 0"),
        "count is not a multiple of acceleratorsPerWorker; remedy: change one of the two, or leave one out",
    ),
    Rule(
        _with("count perNode nodes", "self.count == self.nodes * self.perNode"),
        "count is not nodes x perNode; remedy: leave one of the three out",
    ),
    Rule(
        _with("count acceleratorsPerWorker workers", "self.count == self.workers * self.acceleratorsPerWorker"),
        "count is not workers x acceleratorsPerWorker; remedy: leave one of the three out",
    ),
    Rule(
        _ALIGNED + _with("workers nodes", "self.workers == self.nodes"),
        "workers differ from nodes with placement Aligned; remedy: leave workers out, or set placement: Free",
    ),
    Rule(
        _ALIGNED + _with("perNode acceleratorsPerWorker", "self.perNode == self.acceleratorsPerWorker"),
        "acceleratorsPerWorker differ from perNode with placement Aligned; "
        "remedy: leave it out, or set placement: Free",
    ),
    Rule(
        _with("topology count", f"self.count == {_CHIPS}"),
        "count is not the number of chips of topology (2x2 has 4, 2x2x2 has 8); remedy: leave count out",
    ),
    Rule(
        _with("topology nodes perNode", f"self.nodes * self.perNode == {_CHIPS}"),
        "nodes (hosts) x perNode (chips of a host) is not the number of chips of topology; "
        "remedy: leave nodes and perNode out",
    ),
]
_BLOCKS = f"{', '.join(TRAINING[:-1])} and {TRAINING[-1]}"
_ON_PROCESSORS = "!has(self.hardware.accelerator) || self.hardware.accelerator == 'cpu'"


def _of_solver(rule: str) -> str:
    """A rule of solver runs."""
    return f"!has(self.solver) || {rule}"


def _of_ranks(field: str, rule: str) -> str:
    """A rule of solver runs that applies where the ranks and a field of hardware are given."""
    return _of_solver(f"!has(self.solver.ranks) || !has(self.hardware) || !has(self.hardware.{field}) || ({rule})")


RUN_RULES: dict[str, list[Rule]] = {
    "": [
        Rule(
            "has(self.hardware)",
            "a run on a cluster needs a hardware block; remedy: add hardware: {}, and the planner chooses",
        ),
        Rule(
            "!has(self.hardware) || !has(self.hardware.queue) || !has(self.cluster) || "
            "self.cluster.backend != 'TrainJob' || "
            f"self.cluster.terminationGracePeriodSeconds == {GRACE_SECONDS}",
            "a queue loses cluster.terminationGracePeriodSeconds of a TrainJob; "
            f"remedy: leave it out ({GRACE_SECONDS} s), or set cluster.backend: TFJob or JobSet",
        ),
        *(_unchanged(block, "checkpoints and bill belong to it") for block in IMMUTABLE),
        _set_once("checkpoint", "uri", "the checkpoints are there"),
        Rule(
            f"!has(self.solver) || !({' || '.join(f'has(self.{block})' for block in TRAINING)})",
            f"a run configuration has either model or solver, not both; remedy: remove solver, or {_BLOCKS}",
        ),
        Rule(
            "!has(self.cluster) || self.cluster.backend == 'auto' || "
            "has(self.solver) == (self.cluster.backend == 'MPIJob')",
            "cluster.backend MPIJob is for the ranks of a solver, and the others are for trainings; "
            "remedy: leave cluster.backend out",
        ),
        Rule(
            _of_solver("has(self.cluster) && has(self.cluster.volumeClaim)"),
            "cluster.volumeClaim is absent: launcher and ranks of a solver save in one folder; "
            "remedy: name a PersistentVolumeClaim with the access mode ReadWriteMany",
        ),
        Rule(
            _of_solver(
                "!has(self.cluster) || !has(self.cluster.workspace) || self.cluster.workspace.startsWith('/workspace/')"
            ),
            "cluster.workspace is not below /workspace, where cluster.volumeClaim is mounted; "
            "remedy: write /workspace/runs/NAME, or leave it out",
        ),
        Rule(
            _of_solver("!has(self.hardware) || (!has(self.hardware.topology) && self.hardware.placement == 'Aligned')"),
            "the ranks of a solver have whole nodes with GPUs or processors; "
            "remedy: leave out hardware.topology and hardware.placement",
        ),
        Rule(
            _of_ranks(
                "count",
                f"{_ON_PROCESSORS} ? self.hardware.count <= self.solver.ranks : "
                "self.hardware.count == self.solver.ranks",
            ),
            "hardware.count is not solver.ranks (accelerators, each with a rank), or more than it (nodes without "
            "accelerators); remedy: leave hardware.count out, or change solver.ranks",
        ),
        Rule(
            _of_ranks("perNode", f"{_ON_PROCESSORS} || self.solver.ranks % self.hardware.perNode == 0"),
            "solver.ranks is not a multiple of hardware.perNode; remedy: change one of the two",
        ),
    ],
    "solver": [
        Rule(
            "!has(self.groups) || !has(self.ranks) || self.groups <= self.ranks",
            "groups is more than ranks; remedy: a group needs a rank at least",
        )
    ],
    "cluster": [
        _unchanged("workspace", "the run's folder is there"),
        _unchanged("backend", "its jobs are of that kind"),
        Rule(
            "self.backend != 'TrainJob' || !has(self.priorityClassName)",
            "priorityClassName is set, which a TrainJob cannot carry; "
            "remedy: leave it out, or set backend: TFJob or JobSet",
        ),
    ],
    "hardware": HARDWARE,
    "data": [
        Rule(
            "!has(self.energyGev) || (self.energyGev[0] > 0.0 && self.energyGev[0] <= self.energyGev[1] && "
            "self.energyGev[1] <= 10000.0)",
            "energyGev is not a range; remedy: 0 < lower <= upper <= 10000, such as [5, 40]",
        ),
        Rule(
            "!has(self.angleDeg) || (self.angleDeg[0] >= 20.0 && self.angleDeg[0] <= self.angleDeg[1] && "
            "self.angleDeg[1] <= 160.0)",
            "angleDeg is not a range; remedy: 20 <= lower <= upper <= 160, such as [60, 120]",
        ),
    ],
    "data.geometry": [
        Rule(
            "!has(self.cells) || self.cells.all(n, n >= 1 && n <= 1000)",
            "cells is impossible: each must be 1 to 1000; remedy: three numbers such as [51, 51, 25]",
        ),
        Rule(
            "!has(self.cells) || !has(self.layers) || self.layers.map(g, g.count).sum() == "
            "self.cells[2] * (has(self.layersPerCell) ? self.layersPerCell : 1)",
            "layers do not add up to cells[2] times layersPerCell; remedy: make the counts of the groups add up to it",
        ),
    ],
}
"""Rules by dotted path of the spec."""
