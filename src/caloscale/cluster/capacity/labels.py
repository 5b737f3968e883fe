"""What the labels of nodes say: a table by vendor (labels.csv), before which the rows of a user's own files go."""

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal, NamedTuple, Self, get_args

from pydantic import Field, model_validator

from caloscale.errors import InputError, InvalidValueError, shorten
from caloscale.planning.catalogue.rows import SourcedRow, read_rows

ANY, SAME = ".*", r"\g<0>"
Concept = Literal[
    "accelerator", "tpu", "topology", "pool", "capacityType", "region", "machineType", "count", "memory", "sharing",
    "taint",
]  # fmt: skip


class LabelRow(SourcedRow):
    """A label, or a taint, and what it says of a node."""

    vendor: str = Field(min_length=1)
    """Who sets it: gke, eks, karpenter, aks, openshift, gpu-operator, kubernetes, or a name of one's own."""
    label: str = Field(min_length=1)
    """Key of the label, or of the taint."""
    concept: Concept
    """accelerator (a GPU by its name in the catalogue), tpu, topology (of a TPU slice), pool, capacityType (spot or
    on-demand), region, machineType, count (GPUs of the machine), memory (of a GPU, MiB), sharing (GPUs are shared or
    partitioned: no run goes there), taint (of GPU nodes, that workers tolerate)."""
    value: str = ANY
    """Regular expression of the whole value; empty: any."""
    means: str = SAME
    r"""What the value stands for; \1 is its first group; empty: the value itself."""
    selects: bool = False
    """Whether pods are sent to the pool by this label."""
    note: str = ""
    """What else a reader should know."""

    @model_validator(mode="after")
    def _is_usable(self) -> Self:
        try:
            groups = re.compile(self.value).groups
        except re.error as error:
            problem = f"value {shorten(self.value)} is not a regular expression: {error}"
            raise InvalidValueError(problem, remedy="correct it, or leave it empty") from None
        if any(int(number) > groups for number in re.findall(r"\\(\d)", self.means)):
            problem = f"means {shorten(self.means)} names a group that value does not have"
            raise InvalidValueError(problem, remedy=r"write (...) in value for \1")
        if self.concept == "capacityType" and self.means not in ("spot", "on-demand"):
            remedy = "write spot or on-demand into the column means"
            raise InvalidValueError(f"means is {shorten(self.means)} for a capacityType", remedy=remedy)
        return self


class Meaning(NamedTuple):
    """What a label of a node says."""

    means: str
    row: LabelRow
    """The row by which it does."""
    value: str


@dataclass(frozen=True)
class NodeLabels:
    """The table; the first row of a concept that matches counts."""

    rows: tuple[LabelRow, ...]
    problem: str = ""
    """Why the labels are not known, so that no run is placed on any node; empty: they are known."""

    @functools.cached_property
    def _of_concept(self) -> dict[str, list[LabelRow]]:
        return {concept: [row for row in self.rows if row.concept == concept] for concept in get_args(Concept)}

    def find(self, labels: Mapping[str, str], concept: Concept) -> Meaning | None:
        """What the labels of a node say of a concept; None: nothing."""
        for row in self._of_concept[concept]:
            value = labels.get(row.label)
            if value is not None and (match := re.fullmatch(row.value, value)):
                return Meaning(match.expand(row.means), row, value)
        return None

    def taints(self, *, gpu: bool, spot: bool) -> list[tuple[str, str | None]]:
        """Keys and values of the taints of GPU nodes and of spot nodes; None: any value."""
        rows = self._of_concept["taint"] if gpu else []
        rows = [*rows, *(row for row in self._of_concept["capacityType"] if spot and row.means == "spot")]
        taints = [(row.label, row.value if row.value == re.escape(row.value) else None) for row in rows]
        return list(dict.fromkeys(taints))


@functools.cache
def _builtin() -> tuple[LabelRow, ...]:
    table = resources.files("caloscale.cluster.capacity").joinpath("labels.csv")
    return tuple(row for _, row in read_rows(table, LabelRow, InputError))


def load_labels(files: Iterable[str | Path] = ()) -> NodeLabels:
    """The table of the package and, before it, the user's files (the last goes first).

    Raises InputError naming file, line, column and remedy.
    """
    own = [tuple(row for _, row in read_rows(Path(file), LabelRow, InputError)) for file in files]
    return NodeLabels(tuple(row for rows in reversed([_builtin(), *own]) for row in rows))
