"""What the targets of an export make of a generator's cells: positions in Par04, numbers of DDML, refusals."""

import math

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import erfinv, ndtri
from scipy.stats import kstest

from caloscale.detector.geometry import sensor_depth_mm
from caloscale.errors import InputError
from caloscale.inference.export import par04
from caloscale.inference.export.ddml import NUMBERS, Ddml, expanded, normal_of_uniform
from caloscale.inference.export.files import check_file, export_model
from caloscale.inference.export.par04 import Par04
from caloscale.inference.export.target import clamp
from caloscale.models.card import ModelCard
from caloscale.spec import load_run

from .model_folders import COMPACT, CYLINDER, GEOMETRY, make_model, shared_model

LARGER = "data.geometry.cells=[6, 7, 3]"
"""So many cells that a flow takes more numbers than DDML passes."""


def card(*overrides, preset="compact"):
    run = load_run(preset=preset, overrides=(*(COMPACT if preset == "compact" else ()), *overrides))
    return ModelCard.of(run, source="geant4", versions={}, parameters={})


def test_uniform_numbers_become_normal_ones():
    """Against SciPy, and at the ends, which float32 reaches: -1 and 1 are as finite as their neighbours."""
    inner = np.nextafter(np.float32(1), np.float32(0))
    uniform = np.concatenate([np.linspace(-1, 1, 20_001), 1 - np.geomspace(1e-7, 1, 500), [0, inner, 1, -inner, -1]])
    uniform = uniform.astype(np.float32)
    normal = normal_of_uniform(tf.constant(uniform)).numpy()
    within = np.clip(uniform.astype(np.float64), -float(inner), float(inner))
    truth = np.where(within > 0, -ndtri((1 - within) / 2), ndtri((1 + within) / 2))
    np.testing.assert_allclose(normal, truth, rtol=2e-6, atol=1e-7)
    assert normal.min() == -normal.max() and 5 < normal.max() < 5.5


def test_a_hundred_numbers_become_as_many_as_a_generator_takes():
    """The first ones stay. The others are normal, independent of the first and of each other; other numbers, others."""
    target, size = Ddml(card(), 7000), 7000
    uniform = target.noise(100)
    normal = target.noise_of_network(uniform)
    np.testing.assert_allclose(normal_of_uniform(expanded(tf.constant(uniform), size)), normal, rtol=4e-6, atol=1e-6)
    np.testing.assert_allclose(normal[:, :84], math.sqrt(2) * erfinv(uniform[:, :84].astype(float)), rtol=1e-6)
    others = normal[:, 84:].astype(float)
    assert kstest(others.ravel(), "norm").pvalue > 1e-3
    limit = 4 / math.sqrt(others.size)
    for distance in (1, 2, 17, 289):
        assert abs(np.mean(others[:, distance:] * others[:, :-distance])) < limit, distance
        assert abs(np.mean(others[:, distance:] ** 2 * others[:, :-distance] ** 2) - 1) < 3 * limit, distance
    assert abs(np.mean(others[1:] * others[:-1])) < limit and abs(np.mean(others[:, :84] * normal[:, :84])) < 0.05
    changed = uniform.copy()
    changed[:, -1] *= 0.999
    assert (target.noise_of_network(changed)[:, 84:] != normal[:, 84:]).mean() > 0.999
    assert expanded(tf.constant(uniform), 62).shape == (100, 62)
    ends = np.repeat([[1.0], [-1.0]], NUMBERS, axis=1).astype(np.float32)
    assert np.isfinite(normal_of_uniform(expanded(tf.constant(ends), size))).all()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("target", "preset", "overrides"),
    [
        *((target, "compact", COMPACT) for target in ("par04", "ddml")),
        *((target, "flow", (*GEOMETRY[1:], LARGER)) for target in ("par04", "ddml")),
        ("par04", "flow-par04", CYLINDER),
    ],
)
def test_each_family_is_equal_to_its_network_in_the_call_of_each_target(
    tmp_path_factory, tmp_path, target, preset, overrides
):
    model = shared_model(tmp_path_factory, preset, overrides)
    assert export_model(model, target, tmp_path / target).deviation < 3e-5
    assert check_file(tmp_path / target / "generator.onnx").deviation < 3e-5


@pytest.mark.integration
def test_the_page_of_an_export_says_the_verdict_and_what_one_shower_holds(tmp_path):
    setup = (
        "data.front=[{material: lead, thicknessMm: 5.6}, {material: iron, thicknessMm: 2}]",
        "data.pairDistanceMm=5",
    )
    for name, overrides in (("plain", ()), ("pairs", setup)):
        model = make_model(tmp_path / name, "compact", (*COMPACT, *overrides))
        (model / "verdict.json").write_text('{"decision": "rejected"}')
        export_model(model, "onnx", tmp_path / f"{name}-onnx")
        page = (tmp_path / f"{name}-onnx" / "README.md").read_text()
        assert "Verdict of the validation: rejected." in page
        assert ("not to be simulated again: 5.6 mm of lead, 2 mm of iron." in page) == (name == "pairs")
        assert ("two parallel primaries, 5 mm apart" in page) == (name == "pairs")


def par04_positions(mesh, entry, theta):
    """Par04InferenceSetup::GetPositions, as written there: CLHEP's rotateZ, rotateY, inverse; azimuth 90 degrees."""

    def rotate_z(angle):
        return np.array([[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0], [0, 0, 1]])

    def rotate_y(angle):
        return np.array([[math.cos(angle), 0, math.sin(angle)], [0, 1, 0], [-math.sin(angle), 0, math.cos(angle)]])

    inverse = (rotate_y(-theta) @ rotate_z(-math.pi / 2)).T
    rho, phi, z = np.meshgrid(*(np.arange(count) for count in mesh.cells), indexing="ij")
    angle = (phi + 0.5) * 2 * math.pi / mesh.cells[1] - math.pi
    radius = (rho + 0.5) * mesh.rho_mm
    local = np.stack([radius * np.cos(angle), radius * np.sin(angle), (z + 0.5) * mesh.z_mm], axis=-1)
    return entry + local.reshape(-1, 3) @ inverse.T


def test_azimuths_are_clamped_modulo_a_turn():
    """270 degrees are -90, which was trained; 100 are beyond 90 and become 90."""
    azimuths = np.radians(np.array([-90, -30, 100, 270, 330, 450], np.float32))
    primaries = {"energy_gev": np.full(6, 10, np.float32), "azimuth_rad": azimuths}
    clamped, _ = clamp(primaries, card("data.azimuthDeg=[-90, 90]"))
    np.testing.assert_allclose(np.degrees(clamped["azimuth_rad"]), [-90, -30, 90, -90, -30, 90], atol=1e-4)


def test_positrons_count_as_electrons_and_others_as_the_first_primary():
    primaries = {"energy_gev": np.full(4, 10, np.float32), "pdg": np.float32([11, -11, 22, 211])}
    clamped, _ = clamp(primaries, card("data.particle=[gamma, e-]"))
    assert clamped["pdg"].numpy().tolist() == [11, 11, 22, 22]


@pytest.mark.parametrize("theta_deg", [60, 83, 90, 120])
def test_par04_puts_the_cells_where_they_are(theta_deg):
    """In the detector: face parallel to the beam (z), electrons at azimuth 90 degrees aim 15 mm behind it."""
    of_grid = card("data.geometry.cells=[9, 8, 3]")
    target, theta = Par04(of_grid, 4), math.radians(theta_deg)
    entry = np.array([0.0, 800.0, 800 / math.tan(theta)])
    x, y = (np.arange(9) - 4) * 5.1, (np.arange(8) - 3.5) * 5.1
    aim_z = entry[2] + 15 / math.tan(theta)
    grid = np.array(
        [
            [[[-across, 800 + depth, aim_z + along] for depth in sensor_depth_mm(of_grid.geometry)] for across in y]
            for along in x
        ]
    )
    cells = np.random.default_rng(1).exponential(size=(9, 8, 3)).astype(np.float32)
    deposits = target.expected(cells, {"energy_gev": 10.0, "angle_rad": theta})
    assert deposits.sum() == pytest.approx(1000 * cells.sum(), rel=1e-5)
    positions = par04_positions(target.mesh, entry, theta)
    for cell in np.ndindex(9, 8, 3):
        one = np.zeros((9, 8, 3), np.float32)
        one[cell] = 1
        (where,) = target.expected(one, {"energy_gev": 10.0, "angle_rad": theta}).nonzero()
        half = [target.mesh.rho_mm, 2 * math.pi / target.mesh.cells[1] * np.hypot(*target_uv(grid[cell], entry, theta))]
        reach = math.hypot(*(size / 2 for size in (*half, target.mesh.z_mm))) + target.mesh.rho_mm / 2
        distance = np.linalg.norm(positions[where[0]] - grid[cell])
        assert len(where) == 1 and distance <= reach + outside(grid[cell], entry, theta)
    mean, largest = target.displacement_mm
    assert 0 < mean < largest < 5.1 * 2


def test_the_cells_of_a_cylinder_are_those_of_par04s_mesh():
    """Par04's default mesh; a cell of azimuth a and radius r lies at x = r cos a along the beam, y = r sin a across."""
    target = Par04(card(preset="par04"), 62)
    assert target.mesh == ((9, 16, 45), 4.65, 3.4)
    entry, perpendicular = np.array([0.0, 800.0, 0.0]), math.pi / 2
    positions = par04_positions(target.mesh, entry, perpendicular)
    number = np.arange(16 * 9 * 45, dtype=np.float32).reshape(16, 9, 45)  # each cell has another energy
    deposits = target.expected(number, {"energy_gev": 10.0, "angle_rad": perpendicular})
    for azimuth, radius, depth in [(0, 0, 0), (3, 8, 44), (15, 4, 20), (8, 1, 7)]:
        (where,) = np.flatnonzero(np.isclose(deposits, 1000 * number[azimuth, radius, depth], rtol=1e-5))[:1]
        angle, r_mm = (azimuth + 0.5) * math.pi / 8 - math.pi, (radius + 0.5) * 4.65
        expected = [-r_mm * math.sin(angle), 800 + (depth + 0.5) * 3.4, r_mm * math.cos(angle)]
        np.testing.assert_allclose(positions[where], expected, atol=1e-6)
    assert sorted(deposits) == pytest.approx(1000 * np.arange(16 * 9 * 45), rel=1e-6)
    assert "the same cylinder" in target.usage("generator.onnx")


def test_layers_of_a_cylinder_at_unequal_distances_stay_at_their_depths():
    """Par04's mesh has cells of one depth: 30 of 3.4 mm, then 15 of 6.2 mm."""
    layers = "data.geometry.layers=[{count: 60, absorberMm: 1.4}, {count: 30, absorberMm: 2.8}]"
    of_cylinder = card(layers, "data.geometry.depthMm=195", preset="par04")
    target = Par04(of_cylinder, 62)
    depths, middles = sensor_depth_mm(of_cylinder.geometry), target.mesh.positions_mm()
    for layer in (0, 29, 30, 35, 44):
        shower = np.zeros((16, 9, 45), np.float32)
        shower[3, 4, layer] = 1
        (where,) = target.expected(shower, {"energy_gev": 10.0, "angle_rad": math.pi / 2}).nonzero()
        assert len(where) == 1 and abs(middles[where[0], 2] - depths[layer]) <= 1.7
    assert "unequal distances" in target.usage("generator.onnx")


def target_uv(position, entry, theta):
    """Distances from the axis of the particle, along growing theta and across."""
    along = np.array([0, math.sin(theta), math.cos(theta)])
    across = position - entry - along * np.dot(position - entry, along)
    return np.linalg.norm(across), 0


def outside(position, entry, theta):
    """How far a position lies in front of the mesh, which begins at the entry: it goes to its first layer."""
    return max(0.0, -float(np.dot(position - entry, [0, math.sin(theta), math.cos(theta)])))


@pytest.mark.parametrize(
    ("kind", "noise_size", "overrides", "field"),
    [
        (Ddml, 4, ("data.angleDeg=[60, 80]",), "data.angleDeg"),
        (Ddml, 4, ("data.angleDeg=[90, 90]", "data.geometry.cellShape=cylinder"), "data.geometry.cellShape"),
        (Par04, 4, (), "data.preprocessing.rebin"),
        (Par04, 4, ("data.particle=pi-",), "data.particle"),
    ],
)
def test_what_a_target_cannot_hold(kind, noise_size, overrides, field, monkeypatch):
    monkeypatch.setattr(par04, "MOST_CELLS", 100)
    with pytest.raises(InputError) as error:
        kind(card(*overrides), noise_size)
    assert error.value.field == field and error.value.remedy and error.value.exit_code == 2


@pytest.mark.parametrize(("particle", "called_for"), [("e-", ["e-", "e+"]), ("gamma", ["gamma"])])
def test_the_simulation_calls_the_generator_for_its_own_primary(particle, called_for):
    of_primary = card(f"data.particle={particle}")
    steering = Ddml(of_primary, 4).usage("generator.onnx")
    names = ", ".join(f'"{name}"' for name in called_for)
    assert f"ApplicableParticles = {{{names}}}" in steering and f"EnabledParticles = [{names}]" in steering
    assert all(f'"{name}": 5 * GeV' in steering for name in called_for)
    assert f"/gun/particle {particle}\n" in Par04(of_primary, 4).usage("generator.onnx")
