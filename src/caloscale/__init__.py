"""caloscale: calorimeter generators, from Monte Carlo to a trained model and its bill."""

__version__ = "0.1.0"

IMAGE = f"caloscale/trainer:{__version__}"
"""Image of workers and of pipeline steps where none is named."""
