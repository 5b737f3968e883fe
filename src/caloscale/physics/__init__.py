"""Is the physics right? Observables, statistics, gates and the verdict."""

from caloscale.physics.comparison import Comparison, compare
from caloscale.physics.evaluation import evaluate
from caloscale.physics.result import Evaluation

__all__ = ["Comparison", "Evaluation", "compare", "evaluate"]
