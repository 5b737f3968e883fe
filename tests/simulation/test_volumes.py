"""The calorimeter as volumes of Geant4, and its steps as cells."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloscale.detector.geometry import gap_mm
from caloscale.simulation.volumes import bin_deposits, describe_detector
from caloscale.spec import Data, Geometry
from tests.simulation.shower_fits import TUNGSTEN_X0_MM

LINE = np.dtype([("event", "u8"), ("value", "f8"), ("start", "f8", 3), ("end", "f8", 3)])
POINT = np.dtype([("event", "u8"), ("value", "f8"), ("position", "f8", 3)])


def test_the_stack_is_the_clic_calorimeter() -> None:
    """17 layers of 2.4 mm and 8 of 4.8 mm tungsten, 0.5 mm silicon, 159 mm deep: 22.6 radiation lengths."""
    world = describe_detector(Data(showers=1))
    plates = {name: part for name, part in world.items() if isinstance(part, dict)}
    tungsten = [p["box"][2] * 10 for n, p in plates.items() if p["material"] == "G4_W"]
    silicon = [p["box"][2] * 10 for n, p in plates.items() if p["material"] == "G4_Si"]
    assert tungsten == pytest.approx([2.4] * 17 + [4.8] * 8)
    assert silicon == pytest.approx([0.5] * 25)
    assert sum(tungsten) / TUNGSTEN_X0_MM == pytest.approx(22.6, abs=0.01)
    ends = [10 * (p["position"][2] + p["box"][2] / 2) for p in plates.values()]
    starts = [10 * (p["position"][2] - p["box"][2] / 2) for p in plates.values()]
    assert min(starts) == pytest.approx(0)
    assert max(ends) + gap_mm(Geometry()) == pytest.approx(159)
    assert [n for n, p in plates.items() if p.get("role") == "record_deposits"] == [f"Sensor{i}" for i in range(25)]


@pytest.mark.parametrize("angle_deg", [(90.0, 90.0), (60.0, 120.0), (20.0, 160.0), (30.0, 40.0)])
@pytest.mark.parametrize("cells", [(51, 51, 25), (25, 25, 25)])
def test_every_electron_enters_through_the_front_face(
    angle_deg: tuple[float, float], cells: tuple[int, int, int]
) -> None:
    world = describe_detector(Data(showers=1, geometry=Geometry(cells=cells), angle_deg=angle_deg))
    half_plate_mm = world["Absorber0"]["box"][0] * 10 / 2
    for angle in angle_deg:
        assert abs(50 / np.tan(np.deg2rad(angle))) < half_plate_mm - 40
        start_mm = 55 / np.tan(np.deg2rad(angle))
        assert abs(start_mm) < world["box"][0] * 10 / 2


def test_geant4_finds_no_overlap_and_the_same_materials() -> None:
    program = (
        "import json, sys, calzone\n"
        "g = calzone.Geometry({'World': json.loads(sys.stdin.read())}); g.check()\n"
        "print(len(g.root.daughters), calzone.describe(material='G4_W').density, g['World.Absorber0'].material)"
    )
    world = json.dumps(describe_detector(Data(showers=1, angle_deg=(20, 160))))
    done = subprocess.run([sys.executable, "-c", program], input=world, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["50", "19.3", "G4_W"], done.stderr


STACK = {"layers": ({"count": 6, "absorberMm": 2.4},), "layers_per_cell": 2, "depth_mm": 30}
GRID = Geometry(cells=(5, 4, 3), **STACK)
CYLINDER = Geometry(cell_shape="cylinder", cells=(16, 4, 3), **STACK)


def cell_of(geometry: Geometry, x_mm: float, y_mm: float) -> tuple[int, int]:
    """The cell across that holds a point; of a cylinder azimuth from -pi and radius."""
    if geometry.cell_shape == "cylinder":
        degrees = np.degrees(np.arctan2(y_mm, x_mm)) + 180
        return int(degrees // 22.5) % 16, int((x_mm**2 + y_mm**2) ** 0.5 / geometry.cell_mm)
    return int(np.floor(x_mm / geometry.cell_mm + 2.5)), int(np.floor(y_mm / geometry.cell_mm + 2.0))


@given(
    geometry=st.sampled_from([GRID, CYLINDER]),
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 4),
    steps=st.integers(0, 30),
)
def test_binning_equals_a_plain_loop(geometry: Geometry, seed: int, count: int, steps: int) -> None:
    """What lies outside the window is dropped and nothing else; two layers make a cell in depth."""
    random = np.random.default_rng(seed)
    nx, ny, nz = geometry.cells
    expected = np.zeros((count, nx, ny, nz))
    deposits = {}
    for layer in range(2 * nz):
        line, point = np.zeros(steps, LINE), np.zeros(steps // 3, POINT)
        for array in (line, point):
            array["event"] = random.integers(0, count, len(array))
            array["value"] = random.exponential(1.0, len(array))
        line["start"], line["end"] = random.uniform(-2, 2, (2, steps, 3))
        point["position"] = random.uniform(-2, 2, (len(point), 3))
        deposits[f"World.Sensor{layer}"] = SimpleNamespace(line=line, point=point)
        places = [(s, (s["start"] + s["end"]) / 2) for s in line] + [(s, s["position"]) for s in point]
        for step, (x_cm, y_cm, _) in places:
            ix, iy = cell_of(geometry, 10 * x_cm, 10 * y_cm)
            if 0 <= ix < nx and 0 <= iy < ny:
                expected[step["event"], ix, iy, layer // 2] += step["value"] / 1e3
    binned = bin_deposits(deposits, count, geometry)
    assert binned.dtype == np.float32
    np.testing.assert_allclose(binned, expected, rtol=1e-6)


def test_a_layer_that_nothing_reached_is_empty() -> None:
    assert bin_deposits({}, 2, Geometry()).shape == (2, 51, 51, 25)
    assert not bin_deposits({}, 2, Geometry()).any()
