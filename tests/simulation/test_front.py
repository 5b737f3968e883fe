"""Material before the calorimeter: where its plates lie, and what they do to showers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from caloscale.detector.axes import axes_of
from caloscale.detector.materials import MATERIALS
from caloscale.simulation.tables import elements_of
from caloscale.simulation.volumes import describe_detector, start_before_face_mm
from caloscale.spec import Data, Geometry
from caloscale.spec.data import FrontLayer
from tests.simulation.conftest import simulated

PLATES = (FrontLayer(material="lead", thickness_mm=5.6), FrontLayer(material="scintillator", thickness_mm=3))


def test_plates_lie_one_behind_the_other_before_the_face() -> None:
    """From the start of the primaries: 5 mm of vacuum, the plates in their order, 5 mm of vacuum, the face at 0."""
    world = describe_detector(Data(showers=1, front=PLATES))
    edges_mm = []
    for name in ("Front0", "Front1"):
        middle_mm, thick_mm = 10 * world[name]["position"][2], 10 * world[name]["box"][2]
        edges_mm += [middle_mm - thick_mm / 2, middle_mm + thick_mm / 2]
    assert edges_mm == pytest.approx([-13.6, -8, -8, -5])
    assert start_before_face_mm(PLATES) == pytest.approx(18.6) and start_before_face_mm(()) == 5
    assert [world[name]["material"] for name in ("Front0", "Front1")] == ["G4_Pb", "G4_POLYSTYRENE"]
    assert elements_of(Geometry(), PLATES) == (1, 6, 14, 74, 82)


def test_inclined_primaries_cross_the_plates() -> None:
    """At 20 degrees primaries start far beside the window: the plates reach there, and the world too."""
    thick = (FrontLayer(material="iron", thickness_mm=200),)
    plate_cm, _, _ = describe_detector(Data(showers=1, angle_deg=(20, 160), front=thick))["Front0"]["box"]
    start_mm = (50 + start_before_face_mm(thick)) / np.tan(np.radians(20))
    assert 10 * plate_cm / 2 > start_mm
    world_cm = describe_detector(Data(showers=1, angle_deg=(20, 160), front=thick))["box"][0]
    assert world_cm > plate_cm and 10 * world_cm / 2 > start_before_face_mm(thick)


def data_of(**fields: Any) -> Data:
    usual = {"showers": 40, "energyGev": [10, 10], "angleDeg": [90, 90], "simulation": {"showersPerFile": 20}}
    return Data.model_validate({**usual, "preprocessing": {"rebin": [3, 3, 1]}, **fields})


@pytest.mark.integration
def test_a_radiation_length_before_the_face_moves_the_shower_by_one(tmp_path: Path) -> None:
    """40 showers of 10 GeV with and without 3.5 mm of tungsten, in units of its radiation length."""
    thickness_mm = MATERIALS["tungsten"].x0_mm
    front = [{"material": "tungsten", "thicknessMm": thickness_mm}]
    depths = []
    for name, each in (("with", {"front": front}), ("without", {})):
        data = data_of(**each)
        profile = simulated(data, tmp_path / name).cells_gev.sum(axis=(1, 2), dtype=np.float64)
        depth_x0 = axes_of(
            data.model_copy(update={"preprocessing": Data.model_fields["preprocessing"].default})
        ).depth_x0
        depths.append((profile @ depth_x0) / profile.sum(axis=1))
    moved, error = depths[1].mean() - depths[0].mean(), np.hypot(*(d.std() / len(d) ** 0.5 for d in depths))
    assert error < 0.3 and abs(moved - 1) < 4 * error


@pytest.mark.parametrize("fields", [{"simulation": {"engine": "parametrised"}}, {"source": "showers"}])
def test_what_cannot_have_material_in_front_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="front has 1 plates, and Geant4 alone simulates them"):
        data_of(front=[{"material": "lead", "thicknessMm": 5.6}], **fields)
