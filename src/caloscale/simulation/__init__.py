"""Geant4 showers; parametrised showers. What makes them runs in processes of its own."""

from caloscale.simulation.primaries import file_count
from caloscale.simulation.record import SimulationRecord
from caloscale.simulation.simulate import fingerprint, refuse_other_source, simulate

__all__ = ["SimulationRecord", "file_count", "fingerprint", "refuse_other_source", "simulate"]
