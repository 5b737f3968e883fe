"""Inputs of measures that cannot be: each is named, with a remedy, before anything is measured."""

import datetime as dt

import pytest

from caloscale.errors import ConfigurationError
from caloscale.studies.measures import MEASURES, Context
from tests.studies.test_exchange_model import LINKS, NODES
from tests.studies.test_recovery import TINY, TWO
from tests.studies.test_search import RANGES

COMPACT = {"model.preset": "compact"}
GIVEN = {
    "elastic": TWO,
    "elasticTraining": TINY,
    "exchangeModel": {**LINKS, "workers": 4},
    "exchangedTraining": TINY,
    "generate": COMPACT,
    "nodes": NODES,
    "run": COMPACT,
    "search": {"ranges": RANGES},
    "step": COMPACT,
}
"""Inputs that a measure needs."""


@pytest.mark.parametrize(
    ("measure", "wrong", "says"),
    [
        ("classifier", {"network": "vgg"}, "network"),
        ("classifier", {"workers": 3, "globalBatch": 8}, "globalBatch"),
        ("elastic", {"lostAt": 0}, "lostAt"),
        ("elastic", {"lostAt": 0.5}, "lostAt"),
        ("elastic", {"train.workersPerNode": 1}, "workersPerNode"),
        ("elastic", {"workersAfter": 0}, "workersAfter"),
        ("elasticTraining", {"changes": [{"step": 1, "what": "faint"}]}, "what"),
        ("elasticTraining", {"changes": [{"step": 3, "what": "join"}] * 3}, "5 workers"),
        ("elasticTraining", {"changes": [{"step": 3, "what": "kill"}] * 2}, "no worker is left in step 3"),
        ("elasticTraining", {"cores": 3}, "cores"),
        ("elasticTraining", {"parts": 3}, "does not divide 8"),
        ("elasticTraining", {"train.maxMinutes": 5}, "maxMinutes"),
        ("elasticTraining", {"train.threads.inter": 2}, "inter"),
        ("elasticTraining", {"workers": 0}, "workers"),
        ("elasticTraining", {"workers": 5}, "5 workers"),
        ("ensemble", {"seeds": [1, 1]}, "is not a list of different seeds"),
        ("exchange", {"method": "bounded", "rebalanceEvery": 2}, "rebalanceEvery"),
        ("exchange", {"method": "star"}, "star"),
        ("exchange", {"ranks": 0}, "ranks"),
        ("exchangeEvents", {"method": "central"}, "method"),
        ("exchangeModel", {"gradientBytes": []}, "gradientBytes"),
        ("exchangeModel", {"method": "tree"}, "method"),
        ("exchangeModel", {"workers": 0}, "workers"),
        ("exchangedTraining", {"checkpoint.uri": "gs://bucket/run"}, "uri"),
        ("exchangedTraining", {"deviation": 0.2}, "deviation"),
        ("exchangedTraining", {"epochs": 3}, "epochs"),
        ("exchangedTraining", {"method": "asynchronous"}, "asynchronous"),
        ("exchangedTraining", {"method": "star"}, "star"),
        ("exchangedTraining", {"ranks": 0}, "ranks"),
        ("exchangedTraining", {"ranks": 3}, r"\[1, 2\] steps"),
        ("exchangedTraining", {"ranks": 16}, r"\[0\] steps"),
        ("exchangedTraining", {"train.batch": 3}, "batch"),
        ("exchangedTraining", {"train.maxMinutes": 5}, "maxMinutes"),
        ("exchangedTraining", {"train.workersPerNode": 2}, "workersPerNode"),
        ("generate", {"batch": 0}, "batch"),
        ("generate", {"rounds": "5"}, "rounds"),
        ("imageInput", {"images": 8, "batch": 16}, "batch"),
        ("layout", {"batch": 0}, "batch"),
        ("layout", {"layer": "vgg"}, "layer"),
        ("nodes", {"latencySeconds": -1, "nodes": 2}, "latencySeconds"),
        ("nodes", {"nodes": 0}, "nodes"),
        ("nodes", {"nodes": 2, "showers": None}, "showers"),
        ("parallelism", {"method": "both"}, "method"),
        ("parallelism", {"method": "data", "workers": 3, "batch": 8}, "batch"),
        ("parallelism", {"method": "model", "workers": 3}, "widths"),
        ("run", {"deviation": "0.6"}, "deviation"),
        ("search", {"ranges": {"train.epochs": [3, 2]}}, "3.0 to 2.0 is no range"),
        ("search", {"ranges": {}}, "ranges"),
        ("search", {"sampler": "grid"}, "sampler"),
        ("search", {"trials": 0}, "trials"),
        ("step", {"environment": ["A=1"]}, "environment"),
        ("step", {"processes": 1.5}, "processes"),
        ("step", {"steps": 1}, "steps"),
    ],
)
def test_inputs_that_cannot_be_are_named(measure, wrong, says, tmp_path):
    context = Context(dt.date(2026, 11, 21))
    with pytest.raises(ConfigurationError, match=says) as error:
        MEASURES[measure].compute({**GIVEN.get(measure, {}), **wrong}, context, tmp_path / "point")
    assert error.value.exit_code == 2 and error.value.remedy
