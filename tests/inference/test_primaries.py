"""What a user writes for energies and angles, and what showers get of it."""

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from caloscale.errors import InputError, ShowerFileError
from caloscale.inference.primaries import check_trained, parse_primaries
from caloscale.spec.data import PrimaryRanges

ELECTRONS = PrimaryRanges(energy_gev=(5, 40), angle_deg=(60, 120))


def parse(energies=None, angles=None, seed=1, trained=ELECTRONS, **further):
    return parse_primaries({"energies": energies, "angles": angles, **further}, trained, seed=seed)


def test_a_range_is_evenly_filled():
    energy, angle = parse("10..500", "80..100").of(0, 5000).values()
    assert stats.kstest((energy - 10) / 490, "uniform").pvalue > 1e-3
    assert stats.kstest((np.degrees(angle) - 80) / 20, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(energy, angle)[0, 1]) < 5 / np.sqrt(5000)


def test_what_is_absent_is_what_was_trained_on():
    primaries = parse()
    assert primaries.range_of("energy_gev") == (5, 40)
    assert np.degrees(primaries.range_of("angle_rad")) == pytest.approx((60, 120))


def test_lists_make_all_combinations():
    energy, angle = parse("10,20,50", "60,90").of(1, 7).values()
    np.testing.assert_array_equal(energy, [20, 50, 10, 20, 50, 10, 20])
    np.testing.assert_allclose(np.degrees(angle), [60, 60, 90, 90, 90, 60, 60], rtol=1e-6)


def test_one_value_and_a_range():
    energy, angle = parse("50", "62,118").of(0, 4).values()
    np.testing.assert_array_equal(energy, 50)
    np.testing.assert_allclose(np.degrees(angle), [62, 118, 62, 118], rtol=1e-6)
    drawn = parse("10..20", "62,118")
    np.testing.assert_allclose(np.degrees(drawn.of(0, 3)["angle_rad"]), [62, 118, 62], rtol=1e-6)


@given(first=st.integers(0, 10**6), cut=st.integers(0, 9))
def test_a_shower_does_not_depend_on_the_batch(first, cut):
    primaries = parse("10..500", "60,90")
    whole = primaries.of(first, 9)
    pieces = [primaries.of(first, cut), primaries.of(first + cut, 9 - cut)]
    for name, part in whole.items():
        np.testing.assert_array_equal(part, np.concatenate([piece[name] for piece in pieces]))


def file_of(path, **columns):
    with h5py.File(path, "w") as file:
        file["ECAL"] = np.zeros((len(columns["energy"]), 2, 2, 2), np.float32)
        for name, values in columns.items():
            file[name] = np.asarray(values, np.float32)
    return str(path)


def test_a_file_gives_pairs(tmp_path):
    primaries = parse(file_of(tmp_path / "a.h5", energy=[10, 20, 30], theta=[1.1, 1.2, 1.3]))
    assert primaries.turn == 3
    energy, angle = primaries.of(1, 4).values()
    np.testing.assert_array_equal(energy, [20, 30, 10, 20])
    np.testing.assert_allclose(angle, [1.2, 1.3, 1.1, 1.2], rtol=1e-6)


@pytest.mark.parametrize(
    ("energies", "angles", "field"),
    [
        *((text, None, "energies") for text in ("500..10", "0..10", "-5", "nan", "1,inf", "ten", "", "0.5...9")),
        *((None, text, "angles") for text in ("0", "90,180", "60..")),
    ],
)
def test_texts_that_mean_nothing(energies, angles, field):
    with pytest.raises(InputError, match="is no range or list of numbers") as error:
        parse(energies, angles)
    assert error.value.field == field
    assert error.value.exit_code == 2


def test_files_that_do_not_serve(tmp_path):
    good = file_of(tmp_path / "a.h5", energy=[10], theta=[1.1])
    with pytest.raises(InputError, match="the file of the energies gives them"):
        parse(good, "60..120")
    with pytest.raises(InputError, match=r"b\.h5: energy: shower 1 has an energy that is not positive \(got -1\.0\)"):
        parse(file_of(tmp_path / "b.h5", energy=[10, -1], theta=[1.1, 1.2]))
    with pytest.raises(InputError, match=r"c\.h5: theta: shower 0 has an angle that is not within 0 and pi"):
        parse(file_of(tmp_path / "c.h5", energy=[10], theta=[90]))
    with pytest.raises(InputError, match="contains no showers"):
        parse(file_of(tmp_path / "d.h5", energy=[], theta=[]))
    with pytest.raises(ShowerFileError, match="cannot be read"):
        parse(str(tmp_path / "absent.h5"))
    with pytest.raises(ShowerFileError, match="azimuth_rad: dataset is missing"):
        parse(good, trained=ALL)


def test_a_file_of_another_primary_is_refused(tmp_path):
    path = file_of(tmp_path / "photons.h5", energy=[10], theta=[1.5])
    with h5py.File(path, "a") as file:
        file.attrs["particle"] = np.bytes_("gamma")
    with pytest.raises(InputError, match="holds showers of gamma, the model generates showers of e-") as refused:
        parse(path)
    assert "give a file of e-" in str(refused.value.remedy)
    assert parse(path, trained=ELECTRONS.model_copy(update={"particle": "gamma"})).turn == 1


ALL = PrimaryRanges(
    particle=("e-", "gamma"), energy_gev=(5, 40), angle_deg=(60, 120), azimuth_deg=(-90, 90), entry_mm=(-2, 2)
)


def test_further_columns_are_drawn_or_given():
    drawn = parse(trained=ALL).of(0, 2000)
    assert tuple(drawn) == ALL.columns
    assert stats.kstest(drawn["entry_x_mm"], "uniform", args=(-2, 4)).pvalue > 1e-3
    np.testing.assert_array_equal(drawn["pdg"], np.resize([11, 22], 2000))
    given = parse("7", "80", trained=ALL, azimuths="0,45", entryX="-1..2", entryY="0", particles="gamma").of(0, 4)
    np.testing.assert_allclose(np.degrees(given["azimuth_rad"]), [0, 45, 0, 45], atol=1e-5)
    assert set(given["pdg"]) == {22} and set(given["entry_y_mm"]) == {0} and given["entry_x_mm"].min() >= -1
    assert tuple(parse(trained=ELECTRONS, particles="e-", azimuths="0").of(0, 1)) == ELECTRONS.columns


@pytest.mark.parametrize(
    ("trained", "texts", "field"),
    [
        (ALL, {"particles": "pi-"}, "particles"),
        (ALL, {"particles": "muon"}, "particles"),
        (ALL, {"entryX": "-2..3"}, "entryX"),
        (ALL, {"azimuths": "100"}, "azimuths"),
        (ALL, {"azimuths": "80..280"}, "azimuths"),
        (ELECTRONS, {"azimuths": "0..360"}, "azimuths"),
        (ELECTRONS, {"particles": "gamma"}, "particles"),
        (ELECTRONS, {"entryY": "1"}, "entryY"),
    ],
)
def test_what_the_model_was_not_trained_with_is_refused(trained, texts, field):
    with pytest.raises(InputError) as error:
        parse(trained=trained, **texts)
    assert error.value.field == field and error.value.remedy and error.value.exit_code == 2


def test_azimuths_are_in_degrees_and_count_modulo_a_turn():
    turn = ALL.model_copy(update={"azimuth_deg": (-180, 180)})
    found = parse(trained=turn, azimuths="0,90,180,270,-200").of(0, 5)["azimuth_rad"]
    np.testing.assert_allclose(np.degrees(found), [0, 90, 180, -90, 160], atol=1e-4)
    for trained, text in ((turn, "0..360"), (turn, "170..190"), (ALL, "280..300"), (ALL, "-70..-60")):
        low, high = map(float, text.split(".."))
        found = np.degrees(parse(trained=trained, azimuths=text).of(0, 2000)["azimuth_rad"])
        assert stats.kstest((found - low) % 360 / (high - low), "uniform").pvalue > 1e-3
    for text, value in (("0,200", 200.0), ("80..280", 180.0)):
        with pytest.raises(InputError) as error:
            parse(trained=ALL, azimuths=text)
        assert error.value.value == value and "give -90 to 90 degrees" in str(error.value.remedy)
    with pytest.raises(InputError, match=r"azimuth_rad: .*got 2\.0") as error:
        check_trained({"azimuth_rad": np.float32([-1, 5, 2])}, ALL)
    assert "give -1.5708 to 1.5708 rad" in str(error.value.remedy)


def test_an_error_of_an_option_names_primaries_as_the_option_does():
    with pytest.raises(InputError, match=r"particles: .*got 'pi-'") as error:
        parse(trained=ALL, particles="gamma,pi-")
    assert "give e- or gamma" in str(error.value.remedy)
