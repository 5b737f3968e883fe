"""The fields of a run configuration that have an entry of their own in the form of a pipeline."""

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union

from annotated_types import Ge, Gt

from caloscale.errors import ConfigurationError
from caloscale.spec.block import Block, describe_field
from caloscale.spec.configuration import build_run_of_layers
from caloscale.spec.run import Run


@dataclass(frozen=True)
class FormField:
    """An entry of the form. A form has no entry that is absent: one value of each means that nothing is given."""

    block: str
    """Block of the run configuration."""
    field: str
    """Its field, as Python names it."""

    @property
    def path(self) -> tuple[str, str]:
        """Block and field, as in files."""
        return self.block, self._model.model_fields[self.field].alias or self.field

    @property
    def name(self) -> str:
        """The field as people write it, such as data.energyGev."""
        return ".".join(self.path)

    @property
    def kind(self) -> type:
        """str, int, float, or list for a range."""
        if self.values:
            return str
        kind = next(part for part in _parts(self._annotation) if part is not type(None))
        return list if typing.get_origin(kind) is tuple else kind

    @property
    def values(self) -> tuple[str, ...]:
        """The values that the field can have, where they are few."""
        return tuple(value for part in _parts(self._annotation) for value in _literals(part))

    @property
    def empty(self) -> Any:
        """The value that means: as in `run`, or else as in the preset. 0, or -1 where the field may be 0."""
        if self.kind in (str, list):
            return self.kind()
        bounds = (bound for bound in self._model.model_fields[self.field].metadata if isinstance(bound, Ge | Gt))
        refuses_zero = any(isinstance(bound, Gt) or bound.ge != 0 for bound in bounds)
        return self.kind(0 if refuses_zero else -1)

    @property
    def description(self) -> str:
        """What the field is, with its values where there are few, and what the empty value means."""
        text = " ".join(describe_field(self._model, self.field).split())
        values = f" One of: {', '.join(self.values)}." if self.values else ""
        empty = "Empty" if self.kind in (str, list) else f"{self.empty:g}"
        return f"{text}{values} {empty}: as in run, or else in the preset."

    @property
    def _model(self) -> type[Block]:
        kinds = _parts(Run.model_fields[self.block].annotation)
        return next(kind for kind in kinds if kind is not type(None))

    @property
    def _annotation(self) -> Any:
        return self._model.model_fields[self.field].annotation


def _parts(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, without what annotations add to them."""
    union = typing.get_origin(annotation) in (Union, UnionType)
    parts = typing.get_args(annotation) if union else (annotation,)
    return tuple(part.__origin__ if typing.get_origin(part) is Annotated else part for part in parts)


def _literals(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


FORM: Mapping[str, FormField] = {
    "preset": FormField("model", "preset"),
    "energy_gev": FormField("data", "energy_gev"),
    "angle_deg": FormField("data", "angle_deg"),
    "showers": FormField("data", "showers"),
    "epochs": FormField("train", "epochs"),
    "batch": FormField("train", "batch_per_replica"),
    "precision": FormField("train", "precision"),
    "seed": FormField("train", "seed"),
    "gpus": FormField("train", "gpus"),
    "accelerator": FormField("hardware", "accelerator"),
    "nodes": FormField("hardware", "nodes"),
    "capacity_type": FormField("hardware", "capacity_type"),
    "max_usd": FormField("budget", "max_usd"),
}
"""The entries by name; everything else of a run configuration is in the entry `run`."""
EMPTY_FORM: Mapping[str, Any] = {name: field.empty for name, field in FORM.items()}
"""A form in which nothing is given."""


def run_of_form(form: Mapping[str, Any], run: Mapping[str, Any]) -> Run:
    """The run of the entries of a form (by the names of `FORM`) above the mapping ``run``.

    Raises ConfigurationError as all parsers do, and for a field that both give, with different values.
    """
    given: dict[str, dict[str, Any]] = {}
    for name, value in form.items():
        field = FORM[name]
        if value == field.empty:
            continue
        block, key = field.path
        held = run.get(block)
        if isinstance(held, Mapping) and key in held and held[key] != value:
            problem = f"is given twice: {field.name} in run is another value, {held[key]}"
            remedy = f"leave {field.name} out of run, or {name} at {field.empty!r}"
            raise ConfigurationError(problem, field=name, value=value, remedy=remedy)
        given.setdefault(block, {})[key] = value
    return build_run_of_layers({"run": run, "form": given})
