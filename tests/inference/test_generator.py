import json
import random
import shutil

import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import kstest, uniform

from caloscale.bench.benches import make_model
from caloscale.errors import CheckpointError, InputError
from caloscale.inference.generator import load_generator
from caloscale.models import latent, noise_size
from caloscale.random import latent_noise
from caloscale.showers.files import write_showers
from caloscale.showers.primaries import draw_table
from caloscale.showers.sources import read_of_run
from caloscale.spec import load_run
from tests.inference.model_folders import COMPACT, shared_model


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "model")


@pytest.fixture(scope="module")
def generator(folder):
    return load_generator(folder)


def primaries(count):
    rng = np.random.default_rng(1)
    return rng.uniform(5, 40, count).astype(np.float32), rng.uniform(1.1, 2.0, count).astype(np.float32)


def test_showers_are_what_the_network_says_in_gev(generator):
    energy, angle = primaries(9)
    showers = generator.generate(energy, angle, seed=3)
    run = generator.run
    noise = latent_noise(3, 0, 9, noise_size(run.model, run.data))
    x = generator.network(latent(noise, showers.primaries, run.model, run.data)).numpy()[..., 0]
    cells = x ** (1 / 0.85) / 50
    cells[cells < run.data.preprocessing.threshold_gev] = 0
    np.testing.assert_allclose(showers.cells_gev, cells, rtol=1e-4, atol=1e-7)  # GeV; a cell is 2e-5 or more
    assert showers.source == "generated"
    np.testing.assert_array_equal(showers.energy_gev, energy)
    np.testing.assert_array_equal(showers.angle_rad, angle)


def test_seeds_and_batches(generator):
    energy, angle = primaries(10)
    one, same, other = (
        generator.generate(energy, angle, seed=seed, batch=batch).cells_gev
        for seed, batch in ((1, 128), (1, 3), (2, 3))
    )
    np.testing.assert_allclose(one, same, rtol=1e-4, atol=1e-7)  # GeV; a cell is 2e-5 or more
    assert not np.allclose(one, other, rtol=0.01)
    np.testing.assert_array_equal(one, generator.generate(energy, angle, seed=1).cells_gev)
    some = generator.generate(energy, angle, seed=1)[2:5]
    assert some.seed is None and some[some.energy_gev > 0].seed is None


def test_single_numbers_are_those_of_each_shower(generator):
    showers = generator.generate(20.0, np.pi / 2, count=5, seed=3)
    energy, angle = np.full(5, 20, np.float32), np.full(5, np.pi / 2, np.float32)
    np.testing.assert_array_equal(showers.cells_gev, generator.generate(energy, angle, seed=3).cells_gev)
    np.testing.assert_array_equal(showers.energy_gev, energy)
    assert len(generator.generate(20.0, np.pi / 2)) == 1
    assert generator.generate(20.0, count=0).cells_gev.shape == (0, 5, 4, 3)
    assert len(generator.generate(energy, np.pi / 2)) == 5


def test_showers_say_their_primary(tmp_path_factory, tmp_path):
    """Written and read again, photons are photons. Primaries of showers can be given as they are."""
    photons = load_generator(shared_model(tmp_path_factory, "compact", (*COMPACT, "data.particle=gamma")))
    showers = photons.generate(20.0, np.pi / 2, count=3, seed=3)
    write_showers(showers, tmp_path / "made.h5")
    assert set(read_of_run(tmp_path / "made.h5", photons.run.data).further["pdg"]) == {22}
    np.testing.assert_array_equal(photons.generate(**showers.primaries, seed=3).cells_gev, showers.cells_gev)
    with pytest.raises(InputError, match="pdg: holds a number that the model was not trained with"):
        photons.generate(20.0, np.pi / 2, pdg=11, seed=3)


def test_showers_of_a_cylinder_say_so(cylinder, tmp_path):
    made = load_generator(cylinder)
    write_showers(showers := made.generate(20.0, np.pi / 2, count=3, seed=3), tmp_path / "made.h5")
    assert showers.cell_shape == "cylinder"
    assert read_of_run(tmp_path / "made.h5", made.run.data).cell_shape == "cylinder"


def test_angles_that_are_not_given_are_drawn_from_what_was_trained(generator):
    showers = generator.generate(20.0, count=2000, seed=4)
    low, high = np.radians(generator.card.angle_deg)
    assert kstest(showers.angle_rad, uniform(low, high - low).cdf).pvalue > 1e-3
    again = generator.generate(20.0, count=1000, seed=4)
    np.testing.assert_array_equal(again.angle_rad, showers.angle_rad[:1000])


def test_a_seed_that_is_not_given_is_drawn_and_kept(generator):
    first, second = (generator.generate(20.0, 1.5, count=3) for _ in range(2))
    assert first.seed != second.seed and first[:1].seed == first.seed
    again = generator.generate(20.0, 1.5, count=3, seed=first.seed)
    np.testing.assert_array_equal(first.cells_gev, again.cells_gev)
    assert not np.array_equal(first.cells_gev, second.cells_gev)


@pytest.mark.parametrize(("energy", "count"), [(20.0, -1), (np.full(3, 20.0), 4)])
def test_a_count_that_contradicts_the_primaries(generator, energy, count):
    with pytest.raises(InputError, match="count"):
        generator.generate(energy, 1.5, count=count)


def test_a_generator_in_a_line(generator):
    energy, angle = generator.card.energy_gev, generator.card.angle_deg
    expected = f"5 x 4 x 3 cells, e- of {energy[0]:g} to {energy[1]:g} GeV, {angle[0]:g} to {angle[1]:g} degrees)"
    assert repr(generator).endswith(expected)


def test_the_untrained_generator_has_fresh_weights_but_the_adapted_ones(copy):
    """As a family adapts them to showers: here the first weight of the network."""
    trained = load_generator(copy)
    trained.network.set_weights([weight + 0.5 for weight in trained.network.get_weights()])
    trained.network.save(str(copy / "generator.keras"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(trained.family), "adapted_weights", lambda _, network: network.weights[:1])
        fresh, again = (load_generator(copy, untrained=True).network.get_weights() for _ in range(2))
        drawn = []
        for seed in (3, 4):
            random.seed(seed)
            np.random.seed(seed)
            load_generator(copy, untrained=True)
            drawn.append((random.random(), np.random.random()))
    assert not set(drawn[0]) & set(drawn[1]), "the process's own random numbers are not seeded"
    theirs = load_generator(copy).network.get_weights()
    assert np.array_equal(fresh[0], theirs[0])
    assert not any(np.array_equal(*pair) for pair in zip(fresh[1:], theirs[1:], strict=True))
    assert all(np.array_equal(*pair) for pair in zip(fresh, again, strict=True))


@pytest.mark.parametrize(
    ("energy", "angle", "problem"),
    [
        ([10.0, 20.0], [1.5], "equal length"),
        ([10.0, np.nan], [1.5, 1.5], "shower 1 has an energy that is not positive"),
        ([10.0, 0.0], [1.5, 1.5], "shower 1 has an energy that is not positive"),
        ([10.0, 20.0], [1.5, np.inf], "shower 1 has an angle"),
    ],
)
def test_primaries_that_do_not_exist(generator, energy, angle, problem):
    with pytest.raises(InputError, match=problem):
        generator.generate(np.array(energy), np.array(angle), seed=1)


@pytest.mark.parametrize(
    ("energy_gev", "angle_rad", "problem", "may_extrapolate"),
    [
        (200.0, 1.5, r"energies: go beyond the 5 to 40 GeV .*extrapolate=True", True),
        (20.0, 0.5, r"angles: go beyond the 60 to 120 degrees", True),
        (20.0, 90.0, r"angle_rad: shower 0 has an angle that is not within 0 and pi.*convert degrees", False),
    ],
)
def test_what_was_not_trained_is_refused_unless_it_is_asked_for(
    generator, caplog, energy_gev, angle_rad, problem, may_extrapolate
):
    """As `caloscale generate` does, in each Python call."""
    table = {"energy_gev": np.full(2, energy_gev, np.float32), "angle_rad": np.full(2, angle_rad, np.float32)}
    noise = np.zeros((2, generator.noise_size), np.float32)
    refused = f"(?s){problem}"
    with pytest.raises(InputError, match=refused):
        generator.generate(**table, seed=1)
    with pytest.raises(InputError, match="go beyond"):
        generator.generate_batch(noise, **table)
    if may_extrapolate:
        assert len(generator.generate(**table, seed=1, extrapolate=True)) == 2
        assert "go beyond" in caplog.text and len(generator.generate_batch(noise, **table, extrapolate=True)) == 2
    else:
        with pytest.raises(InputError, match=refused):
            generator.generate(**table, seed=1, extrapolate=True)


def change_card(folder, **changes):
    path = folder / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def truncate(path, part):
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])


def replace_network(folder):
    foreign = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(2)])
    foreign.save(str(folder / "generator.keras"))


def reject(folder):
    (folder / "model.json").unlink()
    (folder / "REJECTED.md").write_text("# Rejected")


DAMAGED = "generator.keras: is truncated or damaged"


def test_a_model_of_a_version_with_other_keys_of_the_cluster_is_used(copy, generator):
    card = json.loads((copy / "model.json").read_text())
    change_card(copy, configuration=card["configuration"] | {"recovery": {"growBack": True}, "cluster": {"grace": 60}})
    np.testing.assert_array_equal(
        load_generator(copy).generate(*primaries(4), seed=1).cells_gev,
        generator.generate(*primaries(4), seed=1).cells_gev,
    )


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (lambda f: (f / "model.json").unlink(), "model.json: cannot be read"),
        (lambda f: (f / "model.json").write_text("{}"), "model.json: energyGev: is not a model card"),
        (lambda f: (f / "model.json").write_bytes(b"\xff\x00"), "is not a model card"),
        (
            lambda f: change_card(f, configuration={"model": {"preset": "new"}}),
            "run configuration that is not valid here",
        ),
        (lambda f: (f / "generator.keras").unlink(), "generator.keras: is missing"),
        *((lambda f, part=part: truncate(f / "generator.keras", part), DAMAGED) for part in (0.0, 0.1, 0.5, 0.99)),
        (lambda f: (f / "generator.keras").write_bytes(b"no network"), DAMAGED),
        (replace_network, "generator.keras: is a network for other showers"),
        (reject, r"rejected it[\s\S]*training/model"),
        (lambda f: change_card(f, latentSize=7), "other showers than model.json says"),
        (lambda f: change_card(f, shape=[5, 4, 2]), "other showers than model.json says"),
    ],
)
def test_folders_that_are_no_model(copy, fault, problem):
    fault(copy)
    with pytest.raises(CheckpointError, match=problem) as error:
        load_generator(copy)
    assert error.value.exit_code == 2
    assert error.value.remedy


def test_a_compact_model_with_further_conditions_is_computed_by_its_layers(tmp_path):
    ranges = ["data.particle=[e-, gamma]", "data.entryMm=[-5, 5]", "data.azimuthDeg=[-180, 180]"]
    run = load_run(preset="compact", overrides=["model.latentSize=16", *ranges])
    make_model(run, tmp_path)
    generator = load_generator(tmp_path)
    noise, columns = latent_noise(1, 0, 3, generator.noise_size), draw_table(run.data, 3, np.random.default_rng(2))
    made = generator.cells_gev(noise, *columns.values()).numpy()
    reversed_columns = dict(reversed(columns.items()))
    np.testing.assert_array_equal(generator.generate_batch(noise, **reversed_columns), made)
    shower = generator.network(latent(noise, columns, run.model, run.data)).numpy()[..., 0].astype(float)
    preprocessing = run.data.preprocessing
    gev = shower ** (1 / preprocessing.power) / preprocessing.units_per_gev
    assert list(columns) == ["energy_gev", "angle_rad", "azimuth_rad", "entry_x_mm", "entry_y_mm", "pdg"]
    expected = np.where(gev >= preprocessing.threshold_gev, gev, 0)
    # Rounding decides on which side of the threshold a cell at the threshold is.
    at_threshold = np.abs(gev - preprocessing.threshold_gev) < 1e-5 * gev.max()
    assert at_threshold.mean() < 1e-3
    np.testing.assert_allclose(made[~at_threshold], expected[~at_threshold], rtol=1e-6, atol=1e-5 * gev.max())
