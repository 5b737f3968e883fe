"""The one parser of run documents: YAML, presets, dotted overrides, errors that a person understands."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import ValidationError

from caloscale.errors import ConfigurationError
from caloscale.spec.model import Preset
from caloscale.spec.problem import list_problems, suggest
from caloscale.spec.run import Run

PRESETS: tuple[str, ...] = get_args(Preset)


class _UniqueKeyLoader(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys silently; a run document refuses them."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} stands twice", node.value[index][0].start_mark
                )
        return super().construct_mapping(node, deep)


def load_run(
    file: str | Path | None = None,
    *,
    preset: str | None = None,
    overrides: Iterable[str] = (),
) -> Run:
    """The run of a YAML file and/or a preset, changed by overrides such as ``train.epochs=3``.

    Raises ConfigurationError naming file, field, value and remedy.
    """
    raw: dict[str, Any] = {}
    if file is not None:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(
                f"cannot be read: {error.strerror}", file=file, remedy="give the path of a run document (YAML)"
            ) from error
        except UnicodeDecodeError as error:
            raise ConfigurationError("is not UTF-8 text", file=file, remedy="save it as UTF-8") from error
        raw = parse_yaml(text, file=file)
    elif preset is None:
        raise ConfigurationError(
            "no document and no preset", remedy=f"give a file, or --preset with one of: {', '.join(PRESETS)}"
        )
    if preset is not None:
        raw = _merge(raw, {"model": {"preset": preset}})
    return build_run(_merge(raw, parse_overrides(overrides)), file=file)


def parse_run(text: str) -> Run:
    """The run of a YAML (or JSON) text, such as a pipeline parameter."""
    return build_run(parse_yaml(text))


def parse_yaml(text: str, *, file: object = None) -> dict[str, Any]:
    """The mapping that a YAML text holds; raises ConfigurationError for anything else."""
    try:
        raw = yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506 (a SafeLoader)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise ConfigurationError(
            f"is not valid YAML: {error}", file=file, remedy="check indentation and quotes"
        ) from error
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        raise ConfigurationError("must be a mapping of blocks", file=file, value=raw, remedy="begin with 'model:'")
    return raw


def parse_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    """Overrides ``a.b=c`` as a nested mapping; the value is read as YAML."""
    merged: dict[str, Any] = {}
    for override in overrides:
        path, equals, value = override.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise ConfigurationError(
                "is not an override", file="--set", value=override, remedy="write it as block.field=value"
            )
        nested: Any = parse_yaml(f"value: {value}", file=f"--set {path}")["value"]
        for key in reversed(keys):
            nested = {key: nested}
        merged = _merge(merged, nested)
    return merged


def build_run(raw: Mapping[str, Any], *, file: object = None) -> Run:
    """The run of a raw mapping: the preset beneath, then validated as a whole."""
    model = raw.get("model") or {}
    preset = model.get("preset", "variable-angle") if isinstance(model, Mapping) else "variable-angle"
    if preset not in PRESETS:
        raise ConfigurationError(
            "is not a preset",
            file=file,
            field="model.preset",
            value=preset,
            remedy=suggest(str(preset), PRESETS) or f"one of: {', '.join(PRESETS)}",
        )
    merged = _merge(load_preset(preset), raw)
    try:
        return Run.model_validate(merged, by_alias=True, by_name=False)
    except ValidationError as error:
        raise _document_error(error, file) from error


def load_preset(name: str) -> dict[str, Any]:
    """The raw mapping of a preset: what differs from the defaults."""
    return copy.deepcopy(_read_preset(name))


@functools.cache
def _read_preset(name: str) -> dict[str, Any]:
    """Read once: an operator parses documents all the time."""
    text = resources.files("caloscale.spec").joinpath("presets", f"{name}.yaml").read_text(encoding="utf-8")
    return parse_yaml(text, file=f"preset {name}")


def dump_run(run: Run) -> str:
    """The resolved document as YAML: every field stands in it, so presets may change later."""
    return yaml.safe_dump(run.model_dump(mode="json", by_alias=True), sort_keys=False, allow_unicode=True)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _document_error(error: ValidationError, file: object) -> ConfigurationError:
    """All problems of a document in one error; the first gives its field, value and remedy."""
    first, *others = (
        ConfigurationError(problem.text, file=file, field=problem.field, value=problem.value, remedy=problem.remedy)
        for problem in list_problems(error, Run)
    )
    first.also = tuple(others)
    return first
