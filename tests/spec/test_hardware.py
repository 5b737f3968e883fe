"""Names of accelerators, and how often spot nodes are interrupted."""

import csv
from importlib.resources import files

import pytest

from caloscale.errors import ConfigurationError
from caloscale.planning.catalogue.hardware import load_accelerators
from caloscale.spec import load_run
from caloscale.spec.hardware import ACCELERATORS


def accelerator(name: str, *overrides: str) -> str | None:
    overrides = (f"hardware.accelerator={name}", *overrides)
    hardware = load_run(preset="variable-angle", overrides=overrides).hardware
    return hardware.accelerator


@pytest.mark.parametrize(
    ("written", "expected"),
    [("a100", "nvidia-tesla-a100"), ("H100", "nvidia-h100-80gb"), ("v5e", "tpu-v5e"), ("L4", "nvidia-l4")],
)
def test_short_names_are_those_of_the_catalogue(written: str, expected: str) -> None:
    assert accelerator(written) == expected


def test_every_name_is_in_the_catalogue_and_no_name_of_the_catalogue_is_changed() -> None:
    known = set(load_accelerators())
    assert set(ACCELERATORS.values()) <= known
    assert not known & set(ACCELERATORS)
    with files("caloscale.planning.catalogue").joinpath("data/slices.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    labels = {row["label"]: row["accelerator"] for row in rows if row["label"]}
    assert labels and all(accelerator(label) == name for label, name in labels.items())


def test_own_machines_keep_their_names() -> None:
    assert accelerator("a100", "hardware.cloud=none") == "a100"
    assert accelerator("my-gpu") == "my-gpu"


def test_more_than_an_interruption_a_second_is_refused() -> None:
    """A plan multiplies the rate by the nodes: 1e308 would overflow."""
    with pytest.raises(ConfigurationError, match="interruptionsPerNodeHour"):
        accelerator("v100", "hardware.interruptionsPerNodeHour=1e308")
    assert accelerator("v100", "hardware.interruptionsPerNodeHour=3600") == "nvidia-tesla-v100"
