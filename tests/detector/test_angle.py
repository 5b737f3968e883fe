import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caloscale.detector.angle import EMPTY_ANGLE_RAD, measured_angle_rad
from caloscale.detector.geometry import sensor_depth_mm, transverse_mm
from caloscale.models.layers.constraints import MeasuredAngle
from caloscale.spec import Geometry
from tests.showers.conftest import make_showers

CLIC = Geometry()


def inclined(angle_deg: float, widths_mm: float = 8.0) -> np.ndarray:
    """A shower that is a straight, Gaussian rod in space, its layers unequally bright."""
    x = (np.arange(51) - 25) * CLIC.cell_mm
    depth = np.array(sensor_depth_mm(CLIC))
    middle = (depth - depth.mean()) / math.tan(math.radians(angle_deg))
    along_x = np.exp(-0.5 * ((x[:, None] - middle) / widths_mm) ** 2)
    along_y = np.exp(-0.5 * (x / widths_mm) ** 2)
    brightness = np.exp(-0.5 * ((depth - 50) / 30) ** 2)
    return (along_x[:, None, :] * along_y[None, :, None] * brightness).astype(np.float32)


@pytest.mark.parametrize("angle_deg", [62, 75, 90, 105, 118])
def test_angle_of_a_straight_rod(angle_deg: float) -> None:
    measured = measured_angle_rad(inclined(angle_deg)[None], CLIC)
    assert math.degrees(measured[0]) == pytest.approx(angle_deg, abs=0.3)


def test_rebinning_changes_the_angle_little() -> None:
    cells = inclined(70)[None]
    coarse = cells.reshape(1, 17, 3, 17, 3, 25).sum(axis=(2, 4))
    assert measured_angle_rad(coarse, CLIC, (3, 3, 1))[0] == pytest.approx(math.radians(70), abs=0.01)


def test_empty_shower_and_single_layer() -> None:
    cells = np.zeros((2, 51, 51, 25), np.float32)
    cells[1, 25, 25, 3] = 1
    assert measured_angle_rad(cells, CLIC).tolist() == pytest.approx([EMPTY_ANGLE_RAD, math.pi / 2])


@given(st.integers(0, 10_000), st.floats(1e-4, 1e4))
@settings(max_examples=25, deadline=None)
def test_mirrored_shower_has_the_mirrored_angle_in_any_unit(seed: int, scale: float) -> None:
    cells = make_showers(2, seed=seed, cells=(6, 4, 25)).cells_gev
    angle = measured_angle_rad(cells, CLIC)
    np.testing.assert_allclose(measured_angle_rad(cells[:, ::-1] * np.float32(scale), CLIC), np.pi - angle, atol=1e-4)
    np.testing.assert_allclose(measured_angle_rad(cells[:, :, ::-1], CLIC), angle, atol=1e-4)


def test_agrees_with_the_layer_of_the_discriminator() -> None:
    """Two implementations of one formula: numpy in float64 here, a Keras layer there."""
    cells = np.concatenate([make_showers(20, cells=(17, 17, 25)).cells_gev, np.zeros((1, 17, 17, 25), np.float32)])
    layer = MeasuredAngle(cell_mm=(15.3, 15.3), depth_mm=sensor_depth_mm(CLIC))
    np.testing.assert_allclose(
        layer(cells[..., None]).numpy().ravel(), measured_angle_rad(cells, CLIC, (3, 3, 1)), atol=2e-4
    )


def test_a_cylinder_measures_the_angle_of_a_line_of_deposits() -> None:
    """Deposits on a line through the axis of the cylinder, inclined by atan(4.65 mm / 10.2 mm) towards +x."""
    geometry = Geometry(
        cell_shape="cylinder",
        cells=(4, 2, 3),
        cell_mm=9.3,
        layers=({"count": 6, "absorberMm": 1.4},),
        layers_per_cell=2,
        active_mm=0.3,
        depth_mm=6 * 5.1,
    )
    x_mm, y_mm = transverse_mm(geometry, (4, 2))
    assert np.hypot(x_mm, y_mm) == pytest.approx(np.tile([4.65, 13.95], (4, 1)))
    azimuth = np.argsort(np.abs(np.arctan2(y_mm[:, 0], x_mm[:, 0])))[:2]  # the two cells beside azimuth 0
    cells = np.zeros((1, 4, 2, 3), np.float32)
    cells[0, (azimuth + 2) % 4, 0, 0] = 1  # x = -r cos 45 degrees
    cells[0, azimuth, 0, 2] = 1
    slope = 2 * 4.65 * np.cos(np.pi / 4) / (2 * 10.2)
    assert measured_angle_rad(cells, geometry) == pytest.approx([np.pi / 2 - np.arctan(slope)], abs=1e-6)
