"""The fields of a run configuration that have an entry of their own in the form of a pipeline."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from caloscale.errors import ConfigurationError
from caloscale.spec.block import Block, describe_field
from caloscale.spec.budget import Budget
from caloscale.spec.configuration import build_run_of_layers, check_mapping
from caloscale.spec.data import Data
from caloscale.spec.hardware import Hardware
from caloscale.spec.model import Model
from caloscale.spec.run import Run
from caloscale.spec.train import Train


@dataclass(frozen=True)
class FormField:
    """An entry of the form. A form has no entry that is absent: one value of each means that nothing is given."""

    block: type[Block]
    """Block of the run configuration."""
    field: str
    """Its field, as Python names it."""
    empty: Any
    """The value, none that the field can have, that means: as in `run`, or else as in the preset."""

    @property
    def path(self) -> tuple[str, str]:
        """Block and field, as in files."""
        return self.block.__name__.lower(), self.block.model_fields[self.field].alias or self.field

    @property
    def name(self) -> str:
        """The field as people write it, such as data.energyGev."""
        return ".".join(self.path)

    @property
    def kind(self) -> type:
        """str, int, float, or list for a range."""
        return type(self.empty)

    @property
    def values(self) -> tuple[str, ...]:
        """The values that the field can have, where they are few."""
        kind = self.block.model_fields[self.field].annotation
        return tuple(v for part in (kind, *get_args(kind)) if get_origin(part) is Literal for v in get_args(part))

    @property
    def description(self) -> str:
        """What the field is, with its values where there are few, and what the empty value means."""
        text = " ".join(describe_field(self.block, self.field).split())
        values = f" One of: {', '.join(self.values)}." if self.values else ""
        empty = "Empty" if self.kind in (str, list) else f"{self.empty:g}"
        return f"{text}{values} {empty}: as in run, or else in the preset."


FORM: Mapping[str, FormField] = {
    "preset": FormField(Model, "preset", ""),
    "energy_gev": FormField(Data, "energy_gev", []),
    "angle_deg": FormField(Data, "angle_deg", []),
    "showers": FormField(Data, "showers", 0),
    "epochs": FormField(Train, "epochs", 0),
    "batch": FormField(Train, "batch_per_replica", 0),
    "precision": FormField(Train, "precision", ""),
    "seed": FormField(Train, "seed", -1),
    "gpus": FormField(Train, "gpus", 0),
    "accelerator": FormField(Hardware, "accelerator", ""),
    "nodes": FormField(Hardware, "nodes", 0),
    "capacity_type": FormField(Hardware, "capacity_type", ""),
    "max_usd": FormField(Budget, "max_usd", 0.0),
}
"""The entries by name; everything else of a run configuration is in the entry `run`."""
EMPTY_FORM: Mapping[str, Any] = {name: field.empty for name, field in FORM.items()}
"""A form in which nothing is given."""


def run_of_form(form: Mapping[str, Any], run: Mapping[str, Any]) -> Run:
    """The run of the entries of a form (by the names of `FORM`) above the mapping ``run``.

    Raises ConfigurationError as all parsers do, and for a field that both give, with different values.
    """
    given: dict[str, dict[str, Any]] = {}
    check_mapping(run, "run")
    for name, value in form.items():
        field = FORM[name]
        if value is None or (value == field.empty and not isinstance(value, bool)):
            continue
        block, key = field.path
        held = run.get(block)
        if isinstance(held, Mapping) and key in held and held[key] != value:
            problem = f"is given twice: {field.name} in run is another value, {held[key]}"
            remedy = f"leave {field.name} out of run, or {name} at {field.empty!r}"
            raise ConfigurationError(problem, field=name, value=value, remedy=remedy)
        given.setdefault(block, {})[key] = value
    return build_run_of_layers({"run": run, "form": given})
