"""Training of the networks on prepared showers."""

from caloscale.training.loop import train
from caloscale.training.record import TrainingRecord

__all__ = ["TrainingRecord", "train"]
