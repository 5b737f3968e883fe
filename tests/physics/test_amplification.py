"""How many Geant4 showers generated ones are worth: closed forms of Gaussian toys."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from caloscale.detector.axes import axes_of
from caloscale.errors import CheckpointError, InputError
from caloscale.physics import compare
from caloscale.physics.amplification import measure_worth, of_deviation, of_scatter
from caloscale.physics.comparison import Weighted
from caloscale.physics.worth import Amplification, Number, Worth, equivalent, worth_of
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.writer import write_showers
from caloscale.showers.tfrecord.manifest import read_manifest
from caloscale.showers.tfrecord.shards import preprocess_showers, read_split
from caloscale.spec import dump_run, load_run
from caloscale.spec.workspace_layout import DATASET
from caloscale.stages import amplification as stage
from caloscale.stages.amplification import amplification
from tests.inference.model_folders import COMPACT
from tests.physics.conftest import DATA, VALIDATION, make_showers

PER_SHOWER, SYSTEMATIC = 20.0, 0.5
TRUE_NUMBER = (PER_SHOWER / SYSTEMATIC) ** 2
GENERATED, REFERENCE = 10_000, 10_000
SIGMA = PER_SHOWER * (1 / GENERATED + 1 / REFERENCE) ** 0.5


def ensemble(random: np.random.Generator, members: int, systematic: float) -> tuple[np.ndarray, np.ndarray]:
    """Deviations from the same Monte Carlo sample, and the sampling error of each."""
    sampling = np.full(members, PER_SHOWER / GENERATED**0.5)
    values = random.normal(0, systematic, members) + random.normal(0, sampling)
    return values + random.normal(0, PER_SHOWER / REFERENCE**0.5), sampling


def weigh(real: Showers, fake: Showers) -> dict[str, Weighted]:
    return compare(real, fake, training=real, untrained=None, data=DATA, validation=VALIDATION).weighted


def worth_of_toys(weighted: list[dict[str, Weighted]], training: tuple[Weighted, Weighted] | None = None) -> Worth:
    pairs, depth_x0 = [(one["reference"], one["generated"]) for one in weighted], axes_of(DATA).depth_x0
    options = {"gated": ["response"], "source": "geant4", "generated": 10**9, "training": training}
    return measure_worth(pairs, ["low", "middle", "high"], depth_x0, **options)


def response_of(worth: Worth) -> Amplification:
    return next(one for one in worth.gated if (one.quantity, one.where) == ("response", "all energies"))


def test_scatter_of_a_large_ensemble_is_the_systematic_error() -> None:
    found = of_scatter(*ensemble(np.random.default_rng(1), 4000, SYSTEMATIC), PER_SHOWER)
    assert found.value == pytest.approx(TRUE_NUMBER, rel=0.08)
    assert found.high is not None and found.low < TRUE_NUMBER < found.high


@pytest.mark.parametrize("members", [3, 5, 10])
def test_interval_of_the_scatter_covers_the_truth_in_95_per_cent(members: int) -> None:
    random, covered = np.random.default_rng(2), 0
    for _ in range(1000):
        found = of_scatter(*ensemble(random, members, SYSTEMATIC), PER_SHOWER)
        covered += found.low <= TRUE_NUMBER and (found.high is None or found.high >= TRUE_NUMBER)
    assert 930 <= covered <= 970


def test_no_systematic_error_gives_a_lower_bound() -> None:
    random = np.random.default_rng(3)
    for _ in range(300):
        for found in (
            of_scatter(*ensemble(random, 4, 0.0), PER_SHOWER),
            of_deviation(ensemble(random, 4, 0.0)[0], np.full(4, SIGMA), PER_SHOWER),
        ):
            assert 0 < found.low < np.inf
            assert found.value is None or found.value >= found.low
    identical = of_scatter(np.array([0, 1e-6, 2e-6]), np.full(3, 0.2), PER_SHOWER)
    assert identical.value is None and identical.high is None and np.isfinite(identical.low)


def test_equal_members_are_bounded_by_their_sampling() -> None:
    """The same generator twice: its scatter is 0, and n is at least that of the sampling error, 100 showers here."""
    found = of_scatter(np.array([1.0, 1.0]), np.array([0.2, 0.2]), per_shower=2.0)
    assert found.value is None and found.high is None and found.low == pytest.approx(100)


def test_a_common_bias_is_observed_but_not_predicted() -> None:
    random, squares = np.random.default_rng(4), []
    for _ in range(200):  # the Monte Carlo sample's own fluctuation moves all members
        values, sampling = ensemble(random, 20, 0.1)
        found = of_deviation(values + 3, np.full(20, SIGMA), PER_SHOWER)
        assert found.value is not None
        squares.append(PER_SHOWER**2 / found.value)
    assert np.mean(squares) == pytest.approx(3**2 + 0.1**2, rel=0.03)
    predicted = of_scatter(values + 3, sampling, PER_SHOWER)
    assert predicted.low == pytest.approx(of_scatter(values, sampling, PER_SHOWER).low)
    assert predicted.low > 10 * (20 / 3) ** 2


def test_interval_of_the_deviation_of_one_generator_covers_its_bias() -> None:
    random, covered = np.random.default_rng(5), 0
    bias = 0.8
    for _ in range(1000):
        values, _ = ensemble(random, 1, 0.0)
        found = of_deviation(values + bias, np.array([SIGMA]), PER_SHOWER)
        truth = (PER_SHOWER / bias) ** 2
        covered += found.low <= truth and (found.high is None or truth <= found.high)
    assert covered >= 935


def test_worth_saturates_at_the_equivalent_number() -> None:
    assert equivalent(1600, 1600) == pytest.approx(800)
    assert equivalent(1e9, 1600) == pytest.approx(1600, rel=1e-5)
    assert equivalent(10, 1e9) == pytest.approx(10)
    bounded = worth_of(Number(value=None, low=1600, high=None), 1600)
    assert bounded == Number(value=None, low=800, high=1600)
    assert equivalent(100, 0) == 0
    worth = worth_of(Number(value=100, low=25, high=300), 100)
    assert (worth.value, worth.low, worth.high) == pytest.approx((50, 20, 75))
    assert str(Number(value=None, low=1234.4, high=None)) == "at least 1,234"
    assert str(Number(value=9.4, low=0.123, high=None)) == "9.4 (0.12 to no bound)"
    assert str(Number(value=12, low=9.5, high=2000)) == "12 (10 to 2,000)"


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (("train.seed=1",), "same generator"),
        (("train.seed=2", "data.energyGev=[20, 30]"), "more than the seed"),
        (("train.seed=2", "train.energyScoreWeight=0"), "more than the seed"),
    ],
)
def test_runs_that_are_no_ensemble_are_refused(tmp_path: Path, second: tuple[str, ...], reason: str) -> None:
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder, overrides in zip(folders, (("train.seed=1",), second)):
        folder.mkdir()
        (folder / "run.yaml").write_text(dump_run(load_run(preset="compact", overrides=overrides)), encoding="utf-8")
    with pytest.raises(InputError, match=reason):
        amplification(folders)
    with pytest.raises(InputError, match="no finished run"):
        amplification([tmp_path])


def test_runs_of_one_ensemble_have_their_own_places_and_limits_on_a_cluster(tmp_path: Path) -> None:
    """The next thing that is refused is that there are no networks."""
    folders = [tmp_path / f"{seed}" for seed in (1, 2)]
    for folder in folders:
        name, seed = f"gs://bucket/seed-{folder.name}", int(folder.name)
        own = (f"train.seed={seed}", f"cluster.workspace={name}", f"budget.maxUsd={seed}", f"checkpoint.uri={name}/c")
        folder.mkdir()
        (folder / "run.yaml").write_text(dump_run(load_run(preset="compact", overrides=own)), encoding="utf-8")
    with pytest.raises(CheckpointError):
        amplification(folders)


def test_response_of_toy_showers_is_worth_what_its_bias_says() -> None:
    real = make_showers(600, 1)
    weighted = [weigh(real, make_showers(600, seed, response=1.2)) for seed in (2, 3)]
    learnt = weigh(real, make_showers(600, 4, response=1.1))
    training = weighted[0]["reference"], learnt["generated"]
    found = worth_of_toys(weighted, training=training).of_runs(("one", "other"), 12.0)
    assert found.worst == min(found.gated, key=lambda one: one.worth.value)
    response = response_of(found)
    fraction = real.cells_gev.sum(axis=(1, 2, 3)) / real.energy_gev
    assert response.per_shower == pytest.approx(100 * fraction.std() / fraction.mean(), rel=0.3)
    assert response.observed.value == pytest.approx((response.per_shower / 20) ** 2, rel=0.3)
    assert response.worth.value == pytest.approx(response.observed.value)
    assert response.usd_per_effective_shower == pytest.approx(12 / response.observed.value)
    assert response.members == 2 and response.predicted is not None
    assert response.training.value == pytest.approx((response.per_shower / 10) ** 2, rel=0.3)


def test_primaries_that_are_shared_do_not_count_as_independent() -> None:
    """A generator that repeats each shower of the reference with 2% more energy: its error is 2% exactly."""
    real = make_showers(600, 1)
    fake = replace(real, cells_gev=real.cells_gev * np.float32(1.02), source="generated")
    pair = weigh(real, fake)
    response = response_of(worth_of_toys([pair]))
    truth = (response.per_shower / 2) ** 2
    assert [response.observed.low, response.observed.value, response.observed.high] == pytest.approx(
        [truth] * 3, rel=1e-2
    )


@pytest.mark.integration
def test_primaries_that_members_share_are_no_scatter() -> None:
    """Responses that differ by a known variance, of 6000 showers that are drawn from the same 300."""
    real, responses = make_showers(300, 1), np.array([0.995, 1.0, 1.005, 1.01])
    weighted = []
    for seed, response in enumerate(responses):
        drawn = real[np.random.default_rng(seed).integers(0, 300, 6000)]
        weighted.append(weigh(real, replace(drawn, cells_gev=(response * drawn.cells_gev).astype(np.float32))))
    found = response_of(worth_of_toys(weighted))
    truth = (found.per_shower / (100 * responses.std(ddof=1))) ** 2
    assert found.predicted is not None and found.predicted.value == pytest.approx(truth, rel=0.5)


def run_of_showers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> tuple[Path, Any, list[Any]]:
    """A run of 400 showers in the folder own, whose generator's energies are kept, and its card."""
    energy_gev = np.random.default_rng(1).uniform(10, 40, 400).astype(np.float32)
    cells = np.random.default_rng(2).gamma(0.3, 0.02, (400, 5, 4, 3)).astype(np.float32)
    cells *= energy_gev[:, None, None, None] / 25
    (tmp_path / "own").mkdir()
    write_showers(
        tmp_path / "own" / "own.h5", Showers(cells, energy_gev, 1.5 + energy_gev / 400, "geant4"), attributes={}
    )
    run = load_run(preset="compact", overrides=[*COMPACT, *overrides, "data.angleDeg=[80, 100]"])
    folder, drawn = tmp_path / "run", []
    preprocess_showers(run.data, tmp_path / "own", folder / DATASET)
    (folder / "run.yaml").write_text(dump_run(run), encoding="utf-8")

    def generate(_: object, table: dict[str, np.ndarray], **__: object) -> Showers:
        drawn.append(table["energy_gev"])
        cells = np.random.default_rng(3).gamma(0.3, 0.02, (len(drawn[-1]), 5, 4, 3)).astype(np.float32)
        return Showers.of(cells, table, "generated")

    card = SimpleNamespace(showers_sha256=read_manifest(folder / DATASET).train_sha256)
    monkeypatch.setattr(stage, "load_generator", lambda _: SimpleNamespace(card=card))
    monkeypatch.setattr(stage, "generate_table", generate)
    monkeypatch.setattr(stage, "report", lambda *_: None)
    return folder, card, drawn


def test_own_data_are_compared_at_the_primaries_that_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the training showers, a finite sample too, would add their fluctuation to the error of the generator;
    training showers are refused as held-out ones."""
    folder, card, drawn = run_of_showers(tmp_path, monkeypatch, f"data.source={tmp_path / 'own'}")
    worth = amplification([folder], showers=2000)
    assert worth.reference == 75 and all(one.training for one in worth.gated)
    training, judging = (set(read_split(folder / DATASET, split).energy_gev) for split in ("train", "validation"))
    assert set(drawn[0]) <= judging and not set(drawn[0]) & training
    with pytest.raises(InputError, match="the networks were trained on"):
        amplification([folder], held_out=folder / DATASET)
    card.showers_sha256 = "of others"
    with pytest.raises(InputError, match="was trained on other shards than"):
        amplification([folder])
    (folder / DATASET).rename(tmp_path / "elsewhere")
    worth = amplification([folder], held_out=tmp_path / "elsewhere", showers=2000)
    assert worth.gated and not any(one.training for one in worth.gated), "the run's own shards are not there"


def test_a_simulation_without_faint_showers_is_compared_at_the_primaries_that_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here those below 28 GeV are left out, in the training, too: no generator learnt them. Without the training
    showers nothing shows why held-out ones have other primaries than the configuration."""
    folder, card, drawn = run_of_showers(tmp_path, monkeypatch, "data.preprocessing.minimumSumGev=0.4")
    assert amplification([folder], showers=2000).reference == 26
    assert set(drawn[0]) <= set(read_split(folder / DATASET, "validation").energy_gev)
    card.showers_sha256 = "of others"
    with pytest.raises(InputError, match="primaries of another distribution"):
        amplification([folder], held_out=folder / DATASET)


def test_quantities_without_a_statistical_error_have_no_number() -> None:
    """One shower a hundred times: nothing fluctuates but its primary's numbers, so no quantity has a number."""
    one = make_showers(100, 1)
    same = Showers(*(np.repeat(values[:1], 100, axis=0) for values in (one.cells_gev, one.energy_gev, one.angle_rad)))
    pair = weigh(same, same)
    worth = worth_of_toys([pair] * 2)
    assert (worth.gated, worth.others, worth.worst) == ((), (), None)
