"""Machines, slices, accelerators and their dated prices and measurements, and what an hour of a node costs."""
