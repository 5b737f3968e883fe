"""The one parser of run configurations: YAML, presets, dotted overrides, errors with a remedy."""

import copy
import functools
import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

import yaml
from pydantic import ValidationError

from caloscale.errors import ConfigurationError, InvalidValueError, cut
from caloscale.spec import document
from caloscale.spec.block import Block
from caloscale.spec.family import OPTIONAL_FIELDS, OWN, find_family, installed
from caloscale.spec.model import Preset
from caloscale.spec.problem import Location, list_problems, suggest
from caloscale.spec.run import Run
from caloscale.spec.solver import SolverPreset, SolverRun
from caloscale.spec.validation import Gate, merge_gates

PRESETS: tuple[str, ...] = get_args(Preset)
SOLVER_PRESETS: tuple[str, ...] = get_args(SolverPreset)
GATES = ("validation", "gates")
"""The list whose entries a layer adds to those beneath; any other list replaces the one beneath."""
_B = TypeVar("_B", bound=Block)


@dataclass(frozen=True)
class _Workload(Generic[_B]):
    """A kind of run configuration: it has a block, with presets, that the others do not have."""

    configuration: type[_B]
    block: str
    presets: tuple[str, ...]
    default: str
    commands: str
    """Commands that run it."""


_TRAINING = _Workload(Run, "model", PRESETS, "variable-angle", "caloscale run")
_SOLVING = _Workload(SolverRun, "solver", SOLVER_PRESETS, "proxy", "caloscale solve")


@dataclass(frozen=True)
class _Layer:
    """Values of a run configuration from one source."""

    source: str
    """Name in messages; empty when there is none to name, as for a custom resource."""
    values: Mapping[str, Any]
    node: yaml.Node | None = None

    def position(self, location: Location) -> str | None:
        """The source with the line of the value at a location; None when the layer has no such value."""
        value: Any = self.values
        node: Any = self.node
        for part in location:
            inside = (
                value.keys() if isinstance(value, Mapping) else range(len(value)) if isinstance(value, list) else ()
            )
            if part not in inside:
                return None
            value, node = value[part], _child(node, part)
        return self.source if node is None else f"{self.source}:{node.start_mark.line + 1}"


@dataclass(frozen=True)
class _Layers:
    """The layers of a run configuration, the last above the others."""

    layers: Sequence[_Layer]
    file: object = None
    """Where a value is that no layer has; None: it has no place."""

    def source(self, location: Location) -> str | None:
        """Where the value at a location, or the block around it, comes from, such as ``run.yaml:12``."""
        keys = tuple(itertools.takewhile(lambda part: isinstance(part, str), location))  # a list replaces one beneath
        for length in range(len(keys), 0, -1):
            for layer in reversed(self.layers):
                if layer.position(keys[:length]) is not None:
                    deepest = (layer.position(location[:end]) for end in range(len(location), 0, -1))
                    return next(position for position in deepest if position is not None) or None
        return None if self.file is None else str(self.file)

    def field_and_source(self, location: Location, merged: Mapping[str, Any]) -> tuple[str, str | None]:
        """A location in the merged values as a user wrote it: a gate has its number in the list of its own layer."""
        layers = self
        if location[:2] == GATES and len(location) > len(GATES) and isinstance(location[2], int):
            gate = merged[GATES[0]][GATES[1]][location[2]]
            for layer in reversed(self.layers):
                for number, own in enumerate(_gates_of(layer)):
                    if own is gate:
                        location, layers = (*GATES, number, *location[3:]), _Layers([layer], self.file)
        return ".".join(map(str, location)), layers.source(location)


def load_run(file: str | Path | None = None, *, preset: str | None = None, overrides: Iterable[str] = ()) -> Run:
    """The run of a YAML file and/or a preset, changed by overrides such as ``train.epochs=3``.

    Raises ConfigurationError naming file, field, value and remedy.
    """
    return _load(_TRAINING, file, preset, overrides)


def load_solver_run(
    file: str | Path | None = None, *, preset: str | None = None, overrides: Iterable[str] = ()
) -> SolverRun:
    """The solver run of a YAML file and/or a preset, changed by overrides such as ``solver.ranks=2``.

    Raises ConfigurationError naming file, field, value and remedy.
    """
    return _load(_SOLVING, file, preset, overrides)


def load_any_run(
    file: str | Path | None = None, *, preset: str | None = None, overrides: Iterable[str] = ()
) -> Run | SolverRun:
    """The run of a YAML file and/or a preset, of either workload.

    Raises ConfigurationError naming file, field, value and remedy.
    """
    return _load(None, file, preset, overrides)


def _load(
    workload: _Workload[Any] | None, file: str | Path | None, preset: str | None, overrides: Iterable[str]
) -> Any:
    """workload: None is that of the preset, or else of the file."""
    layers = [] if file is None else [_layer(document.read_file(file), file)]
    if layers and layers[0].node is None:
        remedy = "write a run configuration into it, such as model: {preset: compact}"
        raise ConfigurationError("is empty", file=file, remedy=remedy)
    if workload is None and preset is not None:
        workload = _SOLVING if preset in SOLVER_PRESETS else _TRAINING
    workload = workload or _workload_of(layers[0].values if layers else {})
    if file is None and preset is None:
        remedy = f"give a file, or --preset with one of: {', '.join(workload.presets)}"
        raise ConfigurationError("no run configuration and no preset", remedy=remedy)
    if preset is not None:
        layers.append(_Layer("--preset", {workload.block: {"preset": preset}}))
    layers.append(_Layer("--set", parse_overrides(overrides)))
    return _build(workload, _Layers(layers, file))


def parse_run(text: str) -> Run:
    """The run of a YAML (or JSON) text, such as a pipeline parameter."""
    return build_run(parse_yaml(text))


def parse_any_run(text: str) -> Run | SolverRun:
    """The run of a YAML (or JSON) text: a solver run where it has a block solver and no model."""
    raw = parse_yaml(text)
    return _build(_workload_of(raw), _Layers([_Layer("", raw)]))


def build_solver_run(raw: Mapping[str, Any]) -> SolverRun:
    """The solver run of a raw mapping such as a pipeline parameter."""
    return _build(_SOLVING, _Layers([_Layer("run", check_mapping(raw, "run"))]))


def build_any_run(raw: Mapping[str, Any]) -> Run | SolverRun:
    """The run of a raw mapping such as the spec of a TrainingRun: a solver run where it has a block solver and no
    model.

    Its family of generators need not be installed here: the machines that train have it, and check its settings.
    """
    return _build(_workload_of(raw), _Layers([_Layer("", raw)]), trained_elsewhere=True)


def _workload_of(raw: Mapping[str, Any]) -> _Workload[Any]:
    return _SOLVING if "solver" in raw and "model" not in raw else _TRAINING


def parse_yaml(text: str, *, file: object = None) -> dict[str, Any]:
    """The mapping in a YAML text; raises ConfigurationError for anything else."""
    return dict(_layer(text, file).values)


def _layer(text: str, file: object) -> _Layer:
    value, node = document.parse(text, file=file)
    return _Layer("" if file is None else str(file), check_mapping({} if value is None else value, file), node)


def check_mapping(raw: Any, source: object) -> Mapping[str, Any]:
    """A raw run configuration that is a mapping; raises ConfigurationError for anything else."""
    if not isinstance(raw, Mapping):
        remedy = "begin with 'model:', or in a form write JSON such as {}"
        raise ConfigurationError("must be a mapping of blocks", file=source, value=raw, remedy=remedy)
    return raw


def parse_override(override: str) -> tuple[str, Any]:
    """Name and value of an override ``a.b=c``; the value is read as YAML."""
    name, equals, value = override.partition("=")
    name = name.strip()
    if not equals or not all(name.split(".")):
        remedy = "write it as NAME=VALUE, such as train.epochs=3"
        raise ConfigurationError("is not an override", file="--set", value=override, remedy=remedy)
    return name, document.parse_value(value, file="--set", field=name)


def parse_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    """Overrides ``a.b=c`` as a nested mapping."""
    merged: dict[str, Any] = {}
    for name, nested in map(parse_override, overrides):
        for key in reversed(name.split(".")):
            nested = {key: nested}
        merged = _merge(merged, nested)
    return merged


def build_run(raw: Mapping[str, Any], *, file: object = None) -> Run:
    """The run of a raw mapping: the preset beneath, then validated as a whole."""
    return _build(_TRAINING, _Layers([_Layer("" if file is None else str(file), raw)], file))


def build_run_of_layers(layers: Mapping[str, Mapping[str, Any]]) -> Run:
    """The run of several raw mappings by the names of their sources in messages, the last above the others."""
    return _build(_TRAINING, _Layers([_Layer(source, values) for source, values in layers.items()]))


def _child(node: Any, part: int | str) -> Any:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        return node.value[part]
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for key, value in pairs if key.value == part), None)


def _build(workload: _Workload[_B], own: _Layers, *, trained_elsewhere: bool = False) -> _B:
    """The run of layers and a preset beneath all. trained_elsewhere: a family that is not installed here is not
    checked."""
    raw: dict[str, Any] = {}
    for layer in own.layers:
        raw = _merge(raw, layer.values)
    _refuse_other_workloads(workload, raw, own)
    block = raw.get(workload.block) or {}
    preset = block.get("preset", workload.default) if isinstance(block, Mapping) else workload.default
    if preset not in workload.presets:
        file, field = own.source((workload.block, "preset")), f"{workload.block}.preset"
        remedy = suggest(cut(str(preset)), workload.presets) or f"one of: {', '.join(workload.presets)}"
        raise ConfigurationError("is not a preset", file=file, field=field, value=preset, remedy=remedy)
    beneath = _Layer(f"preset {preset}", load_preset(preset))
    layers, merged = _Layers([beneath, *own.layers], own.file), _merge(beneath.values, raw)
    try:
        run = workload.configuration.model_validate(merged, by_alias=True, by_name=False)
    except ValidationError as error:
        raise _configuration_error(error, workload.configuration, merged, layers) from error
    if isinstance(run, Run):
        _check_dropped(run, merged, layers)
        if not trained_elsewhere or run.model.family in installed():
            return _of_its_family(run, layers)
    return run


def _of_its_family(run: Any, layers: _Layers) -> Any:
    """The run with all settings of its family. Raises ConfigurationError for what the family cannot train."""
    try:
        family = find_family(run.model.family)
    except ConfigurationError as error:
        error.file = error.file or layers.source(("model", "family"))
        raise
    beneath = Run.model_validate(layers.layers[0].values, by_alias=True, by_name=False)  # a preset may set any field
    for field in OPTIONAL_FIELDS:
        location = tuple(field.split("."))
        value, other = (functools.reduce(operator.getitem, location, one.as_values()) for one in (run, beneath))
        if field not in family.fields and value != other:
            users = ", ".join(name for name in OWN if field in find_family(name).fields)
            remedy = f"leave it out, or set model.family to one that uses it: {users}"
            problem, file = f"is not used by the family {run.model.family}", layers.source(location)
            raise ConfigurationError(problem, file=file, field=field, value=value, remedy=remedy)
    try:
        settings = family.Settings.model_validate(run.model.settings, by_alias=True, by_name=False)
    except ValidationError as error:
        raise _configuration_error(error, family.Settings, {}, layers, below=("model", "settings")) from error
    run = run.model_copy(update={"model": run.model.model_copy(update={"settings": settings.as_values()})})
    try:
        family.check(run.model, run.data)
    except InvalidValueError as error:
        raise ConfigurationError(error.problem, file=layers.source(()), remedy=error.remedy) from error
    return run


def _check_dropped(run: Run, merged: Mapping[str, Any], layers: _Layers) -> None:
    """A gate of the preset does not count where it is dropped by name, and nowhere else."""
    beneath = [Gate.model_validate(gate).name for gate in _gates_of(layers.layers[0])]
    if not run.validation.gates:
        problem, file = "an empty list drops no gate of the preset", layers.source(GATES)
        remedy = "leave it out, or drop each gate by name, such as [{quantity: hits, drop: true}]"
        raise ConfigurationError(problem, file=file, field=".".join(GATES), value=[], remedy=remedy)
    for index, gate in enumerate(run.validation.gates):
        if gate.drop and gate.name not in beneath:
            field, source = layers.field_and_source((*GATES, index), merged)
            problem = f"the preset {run.model.preset} has no gate on {gate.name} that could be dropped"
            remedy = f"leave it out; the preset has {', '.join(beneath)}"
            raise ConfigurationError(problem, file=source, field=field, remedy=remedy)


def _gates_of(layer: _Layer) -> list[Any]:
    block = layer.values.get(GATES[0])
    gates = block.get(GATES[1]) if isinstance(block, Mapping) else None
    return gates if isinstance(gates, list) else []


def _refuse_other_workloads(workload: _Workload[_B], raw: Mapping[str, Any], layers: _Layers) -> None:
    """A run configuration has exactly one of the blocks model and solver."""
    other: _Workload[Any] = _TRAINING if workload is _SOLVING else _SOLVING
    if other.block not in raw:
        return
    problem = f"this is a run configuration for {other.commands}"
    remedy = f"run {other.commands}, or replace {other.block} by {workload.block}"
    if workload.block in raw:
        problem = f"a run configuration has either {workload.block} or {other.block}, not both"
        reads = (f"{one.commands} reads {one.block}" for one in (workload, other))
        remedy = f"remove one of the two blocks: {', '.join(reads)}"
    raise ConfigurationError(problem, file=layers.source((other.block,)), field=other.block, remedy=remedy)


def load_preset(name: str) -> dict[str, Any]:
    """The raw mapping of a preset: what differs from the defaults, with what its ``base``, another preset, gives."""
    return copy.deepcopy(_read_preset(name))


@functools.cache
def _read_preset(name: str) -> dict[str, Any]:
    """Read once: an operator parses configurations all the time."""
    text = resources.files("caloscale.spec").joinpath("presets", f"{name}.yaml").read_text(encoding="utf-8")
    values = parse_yaml(text, file=f"preset {name}")
    base = values.pop("base", None)
    return values if base is None else _merge(_read_preset(base), values)


def dump_run(run: Run | SolverRun) -> str:
    """The resolved configuration as YAML, with every field, so that presets may change later."""
    return document.dump(run.as_values())


def _merge(below: Mapping[str, Any], above: Mapping[str, Any], path: Location = ()) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = _merge(merged[key], value, (*path, key))
        else:
            merged[key] = merge_gates(merged.get(key), value) if (*path, key) == GATES else value
    return merged


def _configuration_error(
    error: ValidationError, block: type[Block], merged: Mapping[str, Any], layers: _Layers, *, below: Location = ()
) -> ConfigurationError:
    """All problems of a configuration in one error; the first gives its source, field, value and remedy. below:
    location of the block in the configuration."""
    problems = []
    for problem in list_problems(error, block):
        field, source = layers.field_and_source((*below, *problem.location), merged)
        problems.append(
            ConfigurationError(problem.text, file=source, field=field, value=problem.value, remedy=problem.remedy)
        )
    first, *others = problems
    if (more := error.error_count() - len(problems)) > 0:
        others.append(ConfigurationError(f"{more} more problems", remedy="correct those above first"))
    first.also = tuple(others)
    return first
