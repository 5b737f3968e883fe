"""Geant4 showers and parametrised showers. Worker processes make them."""

from caloscale.simulation.primaries import file_count
from caloscale.simulation.record import SimulationRecord
from caloscale.simulation.simulate import fingerprint, refuse_other_source, simulate

__all__ = ["SimulationRecord", "file_count", "fingerprint", "refuse_other_source", "simulate"]
