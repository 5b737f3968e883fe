"""The parser of run documents: round trips, presets, overrides, errors, and a fuzz."""

import string
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from caloscale import spec
from caloscale.detector.geometry import absorber_mm, gap_mm
from caloscale.errors import ConfigurationError
from caloscale.spec import document
from caloscale.spec.configuration import parse_overrides, parse_yaml


@pytest.mark.parametrize("preset", spec.PRESETS)
def test_resolved_configuration_is_the_same_run(preset: str) -> None:
    run = spec.load_run(preset=preset)
    assert run.model.preset == preset
    assert spec.parse_run(spec.dump_run(run)) == run
    assert spec.parse_run(run.model_dump_json(by_alias=True)) == run


@pytest.mark.parametrize("preset", spec.PRESETS)
def test_presets_differ_from_the_defaults_only(preset: str) -> None:
    """A preset that repeats a default, or what its base gives, would hide which lines matter."""

    def leaves(tree: dict, path: tuple[str, ...] = ()) -> dict:
        found = {}
        for key, value in tree.items():
            found |= leaves(value, (*path, key)) if isinstance(value, dict) else {(*path, key): value}
        return found

    text = (Path(spec.__file__).parent / "presets" / f"{preset}.yaml").read_text(encoding="utf-8")
    own = yaml.safe_load(text)
    beneath = leaves(spec.Run(data=spec.Data(showers=1)).model_dump(mode="json", by_alias=True))
    if base := own.pop("base", None):
        beneath |= leaves(spec.load_preset(base))
    repeated = [p for p, v in leaves(own).items() if beneath.get(p) == v and p != ("model", "preset")]
    assert repeated == []


def test_configuration_goes_before_preset_and_override_before_configuration(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model: {preset: compact}\ndata: {seed: 7}\ntrain: {epochs: 9}\n")
    run = spec.load_run(file, overrides=["train.epochs=3", "data.energyGev=[6, 7]"])
    assert (run.data.seed, run.train.epochs, run.data.energy_gev) == (7, 3, (6.0, 7.0))
    assert run.data.preprocessing.rebin == (3, 3, 1)
    assert spec.load_run(file, preset="fixed-angle").data.shape == (25, 25, 25)


def test_shape_after_rebinning_and_gap_of_the_layers() -> None:
    data = spec.load_run(preset="compact").data
    assert data.shape == (17, 17, 25)
    geometry = data.geometry
    assert len(absorber_mm(geometry)) == 25
    total = sum(absorber_mm(geometry)) + 25 * (geometry.active_mm + gap_mm(geometry))
    assert total == pytest.approx(geometry.depth_mm)


BAD = {
    "data.shower=5": ("data.shower", "did you mean 'showers'"),
    "train.lossWeights.enrgy=1": ("train.lossWeights.enrgy", "did you mean 'energy'"),
    "model.preset=compct": ("model.preset", "did you mean 'compact'"),
    "train.epochs=zero": ("train.epochs", "write a whole number at least 1, such as 60"),
    "train.maxMinutes=0": ("train.maxMinutes", "write a finite number greater than 0, or leave it out"),
    "budget.pricedAs.region=3": ("budget.pricedAs.region", "write a text, such as us-central1"),
    "hardware.topology=2y2": ("hardware.topology", "write a text that matches"),
    "train=3": ("train", "write a mapping with some of the keys epochs, maxMinutes"),
    "data.energyGev=[5]": ("data.energyGev.1", "write a finite number"),
    "data.energyGev=[.nan, 5]": ("data.energyGev.0", ""),
    "data.geometry.cells=[51, 51, 24]": ("data.geometry", "add up to cells[2]"),
    "data.geometry.cells=[0, 51, 25]": ("data.geometry", "positive"),
    "data.geometry.depthMm=10": ("data.geometry", "raise depthMm"),
    "data.geometry.activeMm=-1": ("data.geometry.activeMm", "greater than 0 and at most 100, such as 0.5"),
    "data.preprocessing.rebin=[4, 3, 1]": ("data", "factors of the cells"),
    "data.showers=null": ("data", "--set data.showers"),
    "data.geometry.absorber=gold": ("data.geometry.absorber", "caloscale.detector.materials"),
    "validation.gates=[{quantity: hit, tolerance: 3}]": ("validation.gates.0.quantity", "one of: response"),
    "checkpoint.uri=az://bucket/run": ("checkpoint.uri", "gs://bucket/prefix"),
    "checkpoint.uri=''": ("checkpoint.uri", "gs://bucket/prefix"),
    "train.seed=4294967296": ("train.seed", "at most 4294967295"),
    "train.threads.intra=1000000": ("train.threads.intra", "at most 1024"),
    "train.batchPerReplica=1e12": ("train.batchPerReplica", "at most 1000000000"),
    "nonsense": ("", "NAME=VALUE"),
    "a..b=1": ("", "NAME=VALUE"),
}


@pytest.mark.parametrize("override", BAD)
def test_errors_name_field_and_remedy(override: str) -> None:
    field, remedy = BAD[override]
    with pytest.raises(ConfigurationError) as caught:
        spec.load_run(preset="compact", overrides=[override])
    assert caught.value.exit_code == 2
    assert (caught.value.field or "") == field
    assert caught.value.remedy
    assert remedy in str(caught.value)


@pytest.mark.parametrize(
    ("preset", "shape", "override"),
    [
        ("variable-angle", "51 x 51 x 25", "data.preprocessing.rebin=[3, 3, 1]"),
        ("variable-angle", "51 x 51 x 25", "data.geometry.cells=[25, 25, 25]"),
        ("fixed-angle", "25 x 25 x 25", "data.geometry.cells=[51, 51, 25]"),
    ],
)
def test_showers_that_the_network_cannot_take_are_refused(preset: str, shape: str, override: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"the {preset} network is made for showers of {shape} cells"
    ) as caught:
        spec.load_run(preset=preset, overrides=[override])
    assert "model.preset to compact" in caught.value.remedy
    spec.load_run(preset="compact", overrides=[override, "data.preprocessing.rebin=[1, 1, 1]"])


def test_the_calochallenge_block_of_the_page_is_a_configuration() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "showers.md").read_text()
    run = spec.parse_run(page.split("```yaml\n")[1].split("```")[0])
    assert run.model.family == "compact" and run.data.geometry.cells == (16, 9, 45) and run.data.geometry.calibrated


def test_a_run_needs_a_file_that_is_there_or_a_preset(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        spec.load_run(tmp_path / "absent.yaml")
    with pytest.raises(ConfigurationError, match="--preset"):
        spec.load_run()


def test_errors_name_the_source_of_each_value(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "# a comment\nmodel: {preset: compact}\ndata:\n  energyGev: [5, 40]\ntrain:\n  epochs: 0\n  epoch: 3\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        spec.load_run(file, overrides=["train.labelFlip=2"])
    found = {error.field: error.file for error in (caught.value, *caught.value.also)}
    assert found == {"train.epochs": f"{file}:6", "train.epoch": f"{file}:7", "train.labelFlip": "--set"}
    with pytest.raises(ConfigurationError) as caught:  # the override wins over the line of the file
        spec.load_run(file, overrides=["train={epochs: x}"])
    assert caught.value.file == "--set" and caught.value.field == "train.epochs"
    file.write_text("model: {preset: compact}\nvalidation:\n  gates:\n  - {}\n")
    with pytest.raises(ConfigurationError) as caught:
        spec.load_run(file)
    assert caught.value.file == f"{file}:4"


def test_every_field_says_what_it_is() -> None:
    """The schema is what a person reads in the editor, in kubectl explain and in the docs."""

    schema = spec.Run.model_json_schema(by_alias=True)
    for name, definition in [("Run", schema), *schema["$defs"].items()]:
        for field, value in definition.get("properties", {}).items():
            assert value.get("description"), f"{name}.{field} has no description"


names = st.sampled_from(["model", "data", "train", "preset", "energyGev", "cells", "geometry", "x", "gates"])
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(["compact", "simulate"])
)
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=4)),
    max_leaves=12,
)


@given(st.dictionaries(names, trees, max_size=4))
def test_any_mapping_is_a_run_or_a_configuration_error(raw: dict) -> None:
    try:
        run = spec.build_run(raw)
    except ConfigurationError as error:
        assert error.remedy
    else:
        assert spec.parse_run(spec.dump_run(run)) == run


@given(st.text(max_size=200))
def test_any_text_is_a_run_or_a_configuration_error(text: str) -> None:
    try:
        spec.parse_run(text)
    except ConfigurationError as error:
        assert error.exit_code == 2


@given(st.text(alphabet=string.printable, max_size=40))
def test_any_override_is_a_mapping_or_a_configuration_error(text: str) -> None:
    try:
        assert isinstance(parse_overrides([text]), dict)
    except ConfigurationError as error:
        assert error.remedy


@given(st.dictionaries(st.text(alphabet=string.ascii_letters, min_size=1, max_size=5), scalars, max_size=5))
@example({"A": "\x85", "B\u2028": "\u2029 c"})
def test_yaml_is_read_as_it_was_written(raw: dict) -> None:
    """Also by a reader of YAML 1.1."""
    finite = {k: v for k, v in raw.items() if v == v}
    assert parse_yaml(document.dump(finite)) == yaml.safe_load(document.dump(finite)) == finite
