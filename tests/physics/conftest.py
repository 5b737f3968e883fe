from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from caloscale.detector.axes import axes_of
from caloscale.physics import Comparison, Evaluation, compare, evaluate
from caloscale.showers.arrays import Showers
from caloscale.spec import Data, Gate, Geometry, LayerGroup, Preprocessing, Validation
from caloscale.spec.data import PDG_CODES

DATA = Data(
    showers=100,
    energy_gev=(5.0, 40.0),
    angle_deg=(60.0, 120.0),
    geometry=Geometry(
        cells=(18, 18, 12),
        cell_mm=7.0,
        layers=(LayerGroup(count=8, absorber_mm=4.8), LayerGroup(count=4, absorber_mm=7.2)),
        depth_mm=100.0,
    ),
    preprocessing=Preprocessing(rebin=(2, 2, 1), threshold_gev=2e-5, minimum_sum_gev=0.0),
)
VALIDATION = Validation(showers=600, bootstraps=60)


def make_showers(
    count: int,
    seed: int,
    *,
    data: Data = DATA,
    response: float = 1.0,
    width: float = 1.0,
    stretch: float = 1.0,
    source: str = "geant4",
) -> Showers:
    """Toy showers: spots of 1 MeV on average, a gamma profile in depth, Gaussian across an inclined axis."""
    rng = np.random.default_rng(seed)
    axes = axes_of(data)
    energy = rng.uniform(*data.energy_gev, count)
    angle = np.deg2rad(rng.uniform(*data.angle_deg, count))
    spots = rng.poisson(26 * response * energy)
    shower = np.repeat(np.arange(count), spots)
    shape = 4 + 0.5 * np.log(energy / 5) + rng.normal(0, 0.25, count)
    depth = rng.gamma(shape[shower], stretch / 0.55)
    layer = np.abs(axes.depth_x0 - depth[:, None]).argmin(axis=1)
    lean = (axes.z_mm[layer] - axes.z_mm[5]) / np.tan(angle[shower])
    x_mm = lean + width * rng.normal(0, 9, len(shower)) * rng.choice([0.6, 2.0], len(shower))
    y_mm = width * rng.normal(0, 9, len(shower)) * rng.choice([0.6, 2.0], len(shower))
    pitch = axes.first[1] - axes.first[0]
    x, y = (np.floor(v / pitch + data.shape[0] / 2).astype(int) for v in (x_mm, y_mm))
    inside = (x >= 0) & (x < data.shape[0]) & (y >= 0) & (y < data.shape[1])
    cells = np.zeros((count, *data.shape))
    np.add.at(cells, (shower[inside], x[inside], y[inside], layer[inside]), rng.exponential(1e-3, int(inside.sum())))
    return Showers(cells.astype(np.float32), energy.astype(np.float32), angle.astype(np.float32), source=source)


def make_two_particles(count: int, seed: int, *, electrons: float, photons: float, source: str) -> Showers:
    """Toy showers of electrons and photons, one after the other, whose responses are these."""
    both = [make_showers(count, seed + k, response=response) for k, response in enumerate((electrons, photons))]
    order = np.arange(2 * count).reshape(2, count).T.reshape(-1)
    columns = {
        "energy_gev": np.concatenate([one.energy_gev for one in both])[order],
        "angle_rad": np.concatenate([one.angle_rad for one in both])[order],
        "pdg": np.tile(np.float32([PDG_CODES["e-"], PDG_CODES["gamma"]]), count),
    }
    return Showers.of(np.concatenate([one.cells_gev for one in both])[order], columns, source)


def make_empty(like: Showers) -> Showers:
    return Showers(np.zeros_like(like.cells_gev), like.energy_gev, like.angle_rad, source="generated")


def judge(
    reference: Showers,
    generated: Showers,
    training: Showers,
    *,
    untrained: Showers | None = None,
    data: Data = DATA,
    validation: Validation = VALIDATION,
    gates: tuple[Gate, ...] = (),
) -> Evaluation:
    validation = validation.model_copy(update={"gates": gates})
    samples = {"training": training, "untrained": untrained}
    return evaluate(compare(reference, generated, **samples, data=data, validation=validation))


@dataclass(frozen=True, eq=False)
class Case:
    reference: Showers
    training: Showers
    comparison: Comparison
    evaluation: Evaluation


# Cached: fixtures of the session are made once for each folder that imports them.
@pytest.fixture(scope="session")
@cache
def undistorted() -> Case:
    """A generator that is the Monte Carlo itself; its untrained network makes noise."""
    reference, training = make_showers(240, 1), make_showers(500, 2)
    generated = make_showers(600, 3, source="generated")
    noise = np.random.default_rng(4).uniform(0, 1e-3, (600, *DATA.shape)).astype(np.float32)
    untrained = Showers(noise, generated.energy_gev, generated.angle_rad, source="generated")
    comparison = compare(reference, generated, training=training, untrained=untrained, data=DATA, validation=VALIDATION)
    return Case(reference, training, comparison, evaluate(comparison))


@pytest.fixture(scope="session")
@cache
def distorted(undistorted: Case) -> Evaluation:
    """Ten per cent too much energy, a quarter too wide; two gates, of which one must reject."""
    generated = make_showers(600, 5, response=1.1, width=1.25, source="generated")
    gates = Gate(quantity="response", tolerance=3), Gate(quantity="longitudinalProfileSeparation", tolerance=0.05)
    return judge(undistorted.reference, generated, undistorted.training, gates=gates)


@pytest.fixture(scope="session")
@cache
def blurred() -> Evaluation:
    """Photons whose response is a fifth lower than that of electrons, and a generator that makes the mean of both."""
    data = DATA.model_copy(update={"particle": ("e-", "gamma")})
    reference, training = (
        make_two_particles(200, seed, electrons=1, photons=0.8, source="geant4") for seed in (11, 13)
    )
    generated = make_two_particles(400, 15, electrons=0.9, photons=0.9, source="generated")
    return judge(reference, generated, training, data=data, gates=(Gate(quantity="response", tolerance=5),))


@pytest.fixture(scope="session")
def nothing() -> Comparison:
    """Twelve parametrised showers against a generator that makes nothing, at one energy and one angle."""
    data = DATA.model_copy(update={"energy_gev": (20.0, 20.0), "angle_deg": (90.0, 90.0)})
    reference = make_showers(12, 6, data=data, source="parametrised")
    nothing = make_empty(make_showers(20, 7, data=data))
    gates = (Gate(quantity="hits", tolerance=30),)
    return compare(
        reference,
        nothing,
        training=make_showers(20, 8, data=data, source="parametrised"),
        untrained=nothing,
        data=data,
        validation=VALIDATION.model_copy(update={"gates": gates}),
    )


@pytest.fixture(scope="session")
def degenerate(nothing: Comparison) -> Evaluation:
    return evaluate(nothing)
