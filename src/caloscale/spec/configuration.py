"""The one parser of run configurations: YAML, presets, dotted overrides, errors with a remedy."""

import copy
import functools
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
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
_WORKLOADS: tuple[_Workload[Any], ...] = (_TRAINING, _SOLVING)


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


def load_run(file: str | Path | None = None, *, preset: str | None = None, overrides: Iterable[str] = ()) -> Run:
    """The run of a YAML file and/or a preset, changed by overrides such as ``train.epochs=3``.

    Raises ConfigurationError naming file, field, value and remedy.
    """
    return _load(_TRAINING, None if file is None else _read_file(file), preset, overrides)


def load_solver_run(
    file: str | Path | None = None, *, preset: str | None = None, overrides: Iterable[str] = ()
) -> SolverRun:
    """The solver run of a YAML file and/or a preset, changed by overrides such as ``solver.ranks=2``.

    Raises ConfigurationError naming file, field, value and remedy.
    """
    return _load(_SOLVING, None if file is None else _read_file(file), preset, overrides)


def load_any_run(
    file: str | Path | None = None, *, preset: str | None = None, overrides: Iterable[str] = ()
) -> Run | SolverRun:
    """The run of a YAML file and/or a preset, of either workload.

    Raises ConfigurationError naming file, field, value and remedy.
    """
    held = None if file is None else _read_file(file)  # once: it may be a pipe
    solving = preset in SOLVER_PRESETS or (
        preset is None and held is not None and _workload_of(held.values) is _SOLVING
    )
    workload: _Workload[Any] = _SOLVING if solving else _TRAINING
    return _load(workload, held, preset, overrides)


def _load(workload: _Workload[_B], held: _Layer | None, preset: str | None, overrides: Iterable[str]) -> _B:
    layers: list[_Layer] = []
    if held is not None:
        layers.append(held)
    elif preset is None:
        remedy = f"give a file, or --preset with one of: {', '.join(workload.presets)}"
        raise ConfigurationError("no run configuration and no preset", remedy=remedy)
    if preset is not None:
        layers.append(_Layer("--preset", {workload.block: {"preset": preset}}))
    layers.append(_Layer("--set", parse_overrides(overrides)))
    return _build(workload, layers, None if held is None else held.source)


def parse_run(text: str) -> Run:
    """The run of a YAML (or JSON) text, such as a pipeline parameter."""
    return build_run(_parse_parameter(text))


def parse_solver_run(text: str) -> SolverRun:
    """The solver run of a YAML (or JSON) text, such as a pipeline parameter."""
    return _build(_SOLVING, [_Layer("", _parse_parameter(text))], None)


def parse_any_run(text: str) -> Run | SolverRun:
    """The run of a YAML (or JSON) text: a solver run where it has a block solver and no model."""
    raw = _parse_parameter(text)
    return _build(_workload_of(raw), [_Layer("", raw)], None)


def _parse_parameter(text: str) -> dict[str, Any]:
    layer = _layer(text, None)
    document.refuse_comment(text, layer.node)
    return dict(layer.values)


def build_solver_run(raw: Mapping[str, Any]) -> SolverRun:
    """The solver run of a raw mapping such as a pipeline parameter."""
    return _build(_SOLVING, [_Layer("run", raw)], None)


def build_any_run(raw: Mapping[str, Any]) -> Run | SolverRun:
    """The run of a raw mapping such as the spec of a TrainingRun: a solver run where it has a block solver and no
    model.

    Its family of generators need not be installed here: the machines that train have it, and check its settings.
    """
    return _build(_workload_of(raw), [_Layer("", raw)], None, trained_elsewhere=True)


def _workload_of(raw: Mapping[str, Any]) -> _Workload[Any]:
    return _SOLVING if "solver" in raw and "model" not in raw else _TRAINING


def parse_yaml(text: str, *, file: object = None) -> dict[str, Any]:
    """The mapping in a YAML text; raises ConfigurationError for anything else."""
    return dict(_layer(text, file).values)


def _layer(text: str, file: object) -> _Layer:
    found = document.parse(text, file=file)
    raw = {} if found.value is None else found.value
    if not isinstance(raw, dict):
        raise ConfigurationError("must be a mapping of blocks", file=file, value=raw, remedy="begin with 'model:'")
    return _Layer("" if file is None else str(file), raw, found.node)


def parse_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    """Overrides ``a.b=c`` as a nested mapping; the value is read as YAML."""
    merged: dict[str, Any] = {}
    for override in overrides:
        path, equals, value = override.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            remedy = "write it as block.field=value"
            raise ConfigurationError("is not an override", file="--set", value=override, remedy=remedy)
        nested: Any = document.parse_value(value, file="--set", field=path.strip())
        for key in reversed(keys):
            nested = {key: nested}
        merged = _merge(merged, nested)
    return merged


def build_run(raw: Mapping[str, Any], *, file: object = None) -> Run:
    """The run of a raw mapping: the preset beneath, then validated as a whole."""
    return _build(_TRAINING, [_Layer("" if file is None else str(file), raw)], file)


def build_run_of_layers(layers: Mapping[str, Mapping[str, Any]]) -> Run:
    """The run of several raw mappings by the names of their sources in messages, the last above the others."""
    return _build(_TRAINING, [_Layer(source, values) for source, values in layers.items()], None)


def _read_file(file: str | Path) -> _Layer:
    held = _layer(document.read_file(file), file)
    if held.node is None:
        remedy = "write a run configuration into it, such as model: {preset: compact}"
        raise ConfigurationError("is empty", file=file, remedy=remedy)
    return held


def _child(node: Any, part: int | str) -> Any:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        return node.value[part]
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for key, value in pairs if key.value == part), None)


def _build(workload: _Workload[_B], layers: Sequence[_Layer], file: object, *, trained_elsewhere: bool = False) -> _B:
    """The run of layers, the last above the others and a preset beneath all.

    trained_elsewhere: a family that is not installed here is not checked.
    """
    raw: dict[str, Any] = {}
    for layer in layers:
        raw = _merge(raw, layer.values)
    _refuse_other_workloads(workload, raw, layers, file)
    block = raw.get(workload.block) or {}
    preset = block.get("preset", workload.default) if isinstance(block, Mapping) else workload.default
    if preset not in workload.presets:
        raise ConfigurationError(
            "is not a preset",
            file=_source(layers, (workload.block, "preset"), file),
            field=f"{workload.block}.preset",
            value=preset,
            remedy=suggest(cut(str(preset)), workload.presets) or f"one of: {', '.join(workload.presets)}",
        )
    layers = [_Layer(f"preset {preset}", load_preset(preset)), *layers]
    merged = _merge(layers[0].values, raw)
    try:
        run = workload.configuration.model_validate(merged, by_alias=True, by_name=False)
    except ValidationError as error:
        raise _configuration_error(error, workload.configuration, merged, layers, file) from error
    if isinstance(run, Run):
        _check_dropped(run, merged, layers, file)
        if not trained_elsewhere or run.model.family in installed():
            return _of_its_family(run, layers, file)
    return run


def _refuse_ignored(used: Collection[str], run: Run, layers: Sequence[_Layer], file: object) -> None:
    """A field that the run sets to another value than its preset does, and that its family of networks does not use."""
    beneath = Run.model_validate(layers[0].values, by_alias=True, by_name=False)
    for field in OPTIONAL_FIELDS:
        location = tuple(field.split("."))
        value, other = (_value(one.as_values(), location) for one in (run, beneath))
        if field not in used and value != other:
            raise ConfigurationError(
                f"is not used by the family {run.model.family}",
                file=_source(layers, location, file),
                field=field,
                value=value,
                remedy="leave it out, or set model.family to one that uses it: "
                + ", ".join(name for name in OWN if field in find_family(name).fields),
            )


def _value(values: Any, location: Location) -> Any:
    for part in location:
        values = values[part]
    return values


def _of_its_family(run: Any, layers: Sequence[_Layer], file: object) -> Any:
    """The run with all settings of its family. Raises ConfigurationError for what the family cannot train."""
    try:
        family = find_family(run.model.family)
    except ConfigurationError as error:
        error.file = error.file or _source(layers, ("model", "family"), file)
        raise
    _refuse_ignored(family.fields, run, layers, file)
    try:
        settings = family.Settings.model_validate(run.model.settings, by_alias=True, by_name=False)
    except ValidationError as error:
        raise _configuration_error(error, family.Settings, {}, layers, file, below=("model", "settings")) from error
    resolved = settings.as_values()
    run = run.model_copy(update={"model": run.model.model_copy(update={"settings": resolved})})
    try:
        family.check(run.model, run.data)
    except InvalidValueError as error:
        raise ConfigurationError(error.problem, file=_source(layers, (), file), remedy=error.remedy) from error
    return run


def _check_dropped(run: Run, merged: Mapping[str, Any], layers: Sequence[_Layer], file: object) -> None:
    """A gate of the preset does not count where it is dropped by name, and nowhere else."""
    beneath = [Gate.model_validate(gate).name for gate in _gates_of(layers[0])]
    if not run.validation.gates:
        raise ConfigurationError(
            "an empty list drops no gate of the preset",
            file=_source(layers, GATES, file),
            field=".".join(GATES),
            value=[],
            remedy="leave it out, or drop each gate by name, such as [{quantity: hits, drop: true}]",
        )
    for index, gate in enumerate(run.validation.gates):
        if gate.drop and gate.name not in beneath:
            field, source = _field_and_source((*GATES, index), merged, layers, file)
            problem = f"the preset {run.model.preset} has no gate on {gate.name} that could be dropped"
            remedy = f"leave it out; the preset has {', '.join(beneath)}"
            raise ConfigurationError(problem, file=source, field=field, remedy=remedy)


def _gates_of(layer: _Layer) -> list[Any]:
    block = layer.values.get(GATES[0])
    gates = block.get(GATES[1]) if isinstance(block, Mapping) else None
    return gates if isinstance(gates, list) else []


def _refuse_other_workloads(
    workload: _Workload[_B], raw: Mapping[str, Any], layers: Sequence[_Layer], file: object
) -> None:
    """A run configuration has exactly one of the blocks model and solver."""
    for other in _WORKLOADS:
        if other is workload or other.block not in raw:
            continue
        both = workload.block in raw
        raise ConfigurationError(
            f"a run configuration has either {workload.block} or {other.block}, not both"
            if both
            else f"this is a run configuration for {other.commands}",
            file=_source(layers, (other.block,), file),
            field=other.block,
            remedy=f"remove one of the two blocks: {workload.commands} reads {workload.block}, {other.commands} reads "
            f"{other.block}"
            if both
            else f"run {other.commands}, or replace {other.block} by {workload.block}",
        )


def _source(layers: Sequence[_Layer], location: Location, file: object) -> str | None:
    """Where the value at a location, or the block around it, comes from, such as ``run.yaml:12``."""
    keys = tuple(itertools.takewhile(lambda part: isinstance(part, str), location))  # a list replaces one beneath it
    for length in range(len(keys), 0, -1):
        for layer in reversed(layers):
            if layer.position(keys[:length]) is not None:
                deepest = (layer.position(location[:end]) for end in range(len(location), 0, -1))
                return next(position for position in deepest if position is not None) or None
    return None if file is None else str(file)


def load_preset(name: str) -> dict[str, Any]:
    """The raw mapping of a preset: what differs from the defaults, with what its ``base``, another preset, gives."""
    return copy.deepcopy(_read_preset(name))


@functools.cache
def _read_preset(name: str) -> dict[str, Any]:
    """Read once: an operator parses configurations all the time."""
    text = resources.files("caloscale.spec").joinpath("presets", f"{name}.yaml").read_text(encoding="utf-8")
    given = parse_yaml(text, file=f"preset {name}")
    base = given.pop("base", None)
    return given if base is None else _merge(_read_preset(base), given)


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
    error: ValidationError,
    block: type[Block],
    merged: Mapping[str, Any],
    layers: Sequence[_Layer],
    file: object,
    *,
    below: Location = (),
) -> ConfigurationError:
    """All problems of a configuration in one error; the first gives its source, field, value and remedy.

    below: location of the block in the configuration.
    """
    problems = []
    for problem in list_problems(error, block):
        field, source = _field_and_source((*below, *problem.location), merged, layers, file)
        problems.append(
            ConfigurationError(problem.text, file=source, field=field, value=problem.value, remedy=problem.remedy)
        )
    first, *others = problems
    if (more := error.error_count() - len(problems)) > 0:
        others.append(ConfigurationError(f"{more} more problems", remedy="correct those above first"))
    first.also = tuple(others)
    return first


def _field_and_source(
    location: Location, merged: Mapping[str, Any], layers: Sequence[_Layer], file: object
) -> tuple[str, str | None]:
    """A location in the merged values as a user wrote it: a gate has its number in the list of its own layer."""
    if location[:2] == GATES and len(location) > len(GATES) and isinstance(location[2], int):
        gate = merged[GATES[0]][GATES[1]][location[2]]
        for layer in reversed(layers):
            for number, own in enumerate(_gates_of(layer)):
                if own is gate:
                    location, layers = (*GATES, number, *location[3:]), [layer]
    return ".".join(map(str, location)), _source(layers, location, file)
