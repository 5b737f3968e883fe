"""The typed entries of a form: kinds, empty values, the run that they make, and what is refused."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from caloscale.errors import ConfigurationError
from caloscale.spec import EMPTY_FORM, FORM, load_run, run_of_form
from caloscale.spec.data import SEEN_BY_NETWORKS, first_unlike

GIVEN = {
    "preset": ("flow", "model.preset=flow"),
    "energy_gev": ([10, 20], "data.energyGev=[10, 20]"),
    "angle_deg": ([80, 100], "data.angleDeg=[80, 100]"),
    "showers": (500, "data.showers=500"),
    "epochs": (3, "train.epochs=3"),
    "batch": (16, "train.batchPerReplica=16"),
    "precision": ("float32", "train.precision=float32"),
    "seed": (0, "train.seed=0"),
    "gpus": (2, "train.gpus=2"),
    "accelerator": ("nvidia-l4", "hardware.accelerator=nvidia-l4"),
    "nodes": (2, "hardware.nodes=2"),
    "capacity_type": ("on-demand", "hardware.capacityType=on-demand"),
    "max_usd": (7.5, "budget.maxUsd=7.5"),
}


def test_a_form_without_entries_is_the_run_beneath() -> None:
    beneath = {"model": {"preset": "compact"}, "train": {"epochs": 5}}
    assert run_of_form(EMPTY_FORM, beneath) == load_run(preset="compact", overrides=["train.epochs=5"])


def test_no_field_can_have_the_value_that_means_nothing() -> None:
    for name, field in FORM.items():
        if name != "accelerator":  # any text is one, as far as the parser knows
            with pytest.raises(ConfigurationError) as refused:
                load_run(preset="flow", overrides=[f"{field.name}={json.dumps(field.empty)}"])
            assert str(refused.value.field).startswith(field.name)
        assert isinstance(GIVEN[name][0], field.kind)


def test_entries_are_the_fields_of_a_file() -> None:
    """Each alone, and all together."""
    for name, (value, override) in GIVEN.items():
        machine = {} if name == "gpus" else {"accelerator": "nvidia-l4"}
        form = {**EMPTY_FORM, "preset": "flow", **machine, name: value}
        overrides = ["hardware.accelerator=nvidia-l4"] if machine else []
        overrides += [] if name in ("preset", "accelerator") else [override]
        assert run_of_form(form, {}) == load_run(preset="flow", overrides=overrides), name
    every = {name: given for name, given in GIVEN.items() if name != "gpus"}  # not with hardware
    overrides = [override for _, override in every.values()]
    assert run_of_form({name: value for name, (value, _) in every.items()}, {}) == load_run(
        preset="flow", overrides=overrides
    )


def test_a_field_that_the_form_and_the_run_give_with_other_values_is_refused() -> None:
    beneath: dict[str, Any] = {"model": {"preset": "flow"}, "train": {"epochs": 5}}
    assert run_of_form({"epochs": 5, "preset": ""}, beneath).train.epochs == 5
    with pytest.raises(ConfigurationError, match=r"train\.epochs in run is another value, 5") as refused:
        run_of_form({"epochs": 6}, beneath)
    assert refused.value.field == "epochs" and refused.value.value == 6 and "epochs at 0" in str(refused.value)
    for epochs in (-2, False):
        with pytest.raises(ConfigurationError, match=r"train\.epochs"):
            run_of_form({"epochs": epochs}, {})
    assert run_of_form({"nodes": None}, {}).hardware is None
    for run in ([], "train: {epochs: 3}"):
        with pytest.raises(ConfigurationError, match="run: must be a mapping"):
            run_of_form({"epochs": 6}, run)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"leave out train\.gpus") as refused:
        run_of_form({"preset": "flow", "gpus": 1, "accelerator": "nvidia-l4"}, {})
    assert refused.value.exit_code == 2


def test_descriptions_name_the_values_and_what_empty_means() -> None:
    text = FORM["capacity_type"].description
    assert "One of: " in text and "spot" in text and "on-demand" in text
    assert text.endswith("Empty: as in run, or else in the preset.")
    assert FORM["seed"].description.endswith(" -1: as in run, or else in the preset.")
    assert FORM["seed"].name == "train.seed" and FORM["energy_gev"].values == ()


def test_a_field_that_the_family_does_not_use_names_its_place() -> None:
    with pytest.raises(ConfigurationError, match="is not used by the family flow") as refused:
        load_run(preset="flow", overrides=["model.latentSize=64"])
    error = refused.value
    assert error.field == "model.latentSize" and error.value == 64 and error.file == "--set"
    assert "compact" in str(error.remedy) and "flow" not in str(error.remedy).split(": ")[-1]


def test_the_first_field_of_another_detector_is_named() -> None:
    data = load_run(preset="compact").data
    same = {name: getattr(data, name) for name in SEEN_BY_NETWORKS}
    assert first_unlike(SimpleNamespace(**same), data) is None
    assert first_unlike(SimpleNamespace(**{**same, "azimuth_deg": (0.0, 9.0)}), data) == (
        "azimuthDeg",
        (0.0, 9.0),
        None,
    )
