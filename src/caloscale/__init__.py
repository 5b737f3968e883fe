"""caloscale: calorimeter generators, from Monte Carlo to a trained model and its bill."""

__version__ = "0.1.0"
