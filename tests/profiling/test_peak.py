"""The precision that a machine computes faster: the rule, and where nothing is measured."""

import logging

import pytest

from caloscale.errors import InputError
from caloscale.profiling import peak
from caloscale.profiling.peak import with_measured_precision
from caloscale.spec import load_run
from caloscale.training.state import TrainingState
from caloscale.training.strategy import DistributionContext, Placement, one_replica
from tests.models import needs_bfloat16
from tests.training.conftest import small_run


def rates(monkeypatch, float32, bfloat16):
    found = {"float32": float32, "bfloat16": bfloat16}
    monkeypatch.setattr(peak, "measure_peak", lambda name, **_: found[name])


@needs_bfloat16
@pytest.mark.parametrize(
    ("float32", "bfloat16", "faster"),
    [(187, 413, "bfloat16"), (100, 150, "bfloat16"), (100, 149, "float32"), (293, 152, "float32")],
)
def test_bfloat16_where_its_products_are_one_and_a_half_times_as_fast(monkeypatch, float32, bfloat16, faster):
    rates(monkeypatch, float32, bfloat16)
    assert with_measured_precision(small_run("train.precision=auto")).train.precision == faster


@needs_bfloat16
def test_a_training_takes_what_was_measured_and_says_so(monkeypatch, caplog):
    rates(monkeypatch, 100, 300)
    with caplog.at_level(logging.INFO, logger="caloscale"):
        state = TrainingState(small_run("train.precision=auto"))
    assert state.run.train.precision == "bfloat16" and "300 in bfloat16" in caplog.text
    assert {layer.compute_dtype for layer in state.networks["generator"].layers} >= {"bfloat16"}
    plain = small_run()
    assert with_measured_precision(plain) is plain


@pytest.mark.parametrize(
    ("override", "workers"),
    [
        ("train.seed=2", 2),
        ("hardware.accelerator=nvidia-tesla-v100", 1),
        ("train.workersPerNode=2", 2),
        ("train.deterministic=true", 1),
        ("model.family=flow", 1),
    ],
)
def test_where_nothing_is_measured_the_precision_is_float32(monkeypatch, override, workers):
    monkeypatch.setattr(peak, "measure_peak", None)
    run = load_run(preset="compact", overrides=["train.precision=auto", override])
    assert with_measured_precision(run, workers).train.precision == "float32"


def test_where_bfloat16_would_be_wrong_it_is_never_chosen_and_refused_where_it_is_asked_for(monkeypatch):
    rates(monkeypatch, 100, 300)
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    assert TrainingState(small_run("train.precision=auto")).run.train.precision == "float32"
    with pytest.raises(InputError, match=r"train\.precision: .*several per cent.*'bfloat16'\)[\s\S]*float32") as error:
        TrainingState(small_run("train.precision=bfloat16"))
    assert error.value.exit_code == 2
    on_gpu = DistributionContext(Placement("one-device", "GPU"), one_replica().strategy)
    assert TrainingState(small_run("train.precision=bfloat16"), on_gpu).run.train.precision == "bfloat16"
