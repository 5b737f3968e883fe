"""Environments of one's own: the example of docs/solver.md, and what is refused."""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from caloscale.errors import ConfigurationError
from caloscale.random import EventDraws
from caloscale.sagips.environment import EVENTS, PARAMETERS, load_class, make_environment
from caloscale.sagips.optimizers import make_optimizer
from caloscale.spec import load_solver_run

PAGE = Path(__file__).parents[2] / "docs" / "solver.md"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> str:
    """The module of the page, importable."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    module = ModuleType("example_of_the_page")
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


def test_modules_of_a_chain_pass_events_on(example: str) -> None:
    import tensorflow as tf

    chain = make_environment(f"{example}.Smeared", {}, 20_000, "field")
    values = chain({PARAMETERS: tf.constant([[0.4], [0.9]])}, EventDraws(1, 0, 0, 0, 2))
    assert values[EVENTS].shape == (2, 20_000, 1)
    np.testing.assert_allclose(values[EVENTS].numpy().mean(axis=(1, 2)), [1 / 0.5, 1 / 1.0], rtol=0.03)


@pytest.mark.integration
def test_the_environment_of_the_page_is_solved_for_its_parameter(example: str) -> None:
    overrides = [
        "solver.ranks=1",
        "solver.objective=energy-distance",
        f"solver.dataSets=[{{environment: {example}.Smeared, events: 4000}}]",
        "solver.generator={width: 16, layers: 2, noise: 3, learningRate: 0.003}",
        "solver.parameterSamples=8",
        "solver.eventsPerSample=32",
        "solver.epochs=300",
    ]
    optimizer = make_optimizer(load_solver_run(preset="proxy", overrides=overrides).solver, 0)
    for epoch in range(300):
        step = optimizer.step(epoch)
        optimizer.apply(step.gradient, step, epoch)
    assert optimizer.problem.parameters == ("rate",)
    assert optimizer.propose().mean() == pytest.approx(0.4, abs=0.05)


def test_a_pipeline_without_a_gradient_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    from tests.sagips.toy import Normal

    class Fixed(Normal):
        def __call__(self, values: Any, draws: EventDraws) -> Any:
            return {name: tf.stop_gradient(value) for name, value in super().__call__(values, draws).items()}

    monkeypatch.setattr("tests.sagips.toy.Normal", Fixed)
    overrides = ["solver.ranks=1", "solver.parameterSamples=2", "solver.eventsPerSample=4"]
    overrides += ["solver.dataSets=[{environment: tests.sagips.toy.Normal, events: 40}]"]
    optimizer = make_optimizer(load_solver_run(preset="proxy", overrides=overrides).solver, 0)
    with pytest.raises(ConfigurationError, match="have no gradient with respect to the parameters"):
        optimizer.step(0)


def test_an_error_of_a_module_of_ones_own_is_no_missing_class(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "own_module.py").write_text("import math\nclass Own: half = math.halve(1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AttributeError, match="halve"):
        load_class("own_module.Own", "solver.objective")
    (tmp_path / "own_late.py").write_text("def __getattr__(name): import no_such_package")
    with pytest.raises(ConfigurationError, match="cannot be imported: No module named 'no_such_package'"):
        load_class("own_late.Own", "solver.objective")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("no_such_package.Pipeline", {}, "cannot be imported"),
        ("tests.sagips.toy.Nothing", {}, "has no class Nothing"),
        ("tests.sagips.toy.Normal", {"trouth": 1}, "cannot be constructed with these options"),
        ("tests.sagips.toy.Normal", {"truth": [0.65, 40]}, r"its truth \(0.65, 40\) is not one number between 0 and 1"),
        ("tests.sagips.toy.Normal", {"truth": [0.65]}, "for each of mean, width"),
        ("types.SimpleNamespace", {"grid": 1}, "is not an environment: it has no parameters"),
    ],
)
def test_what_is_no_environment_is_named_with_its_field(name: str, options: dict, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        make_environment(name, options, 10, "solver.dataSets.0.environment")
    assert caught.value.field == "solver.dataSets.0.environment" and caught.value.value == name
