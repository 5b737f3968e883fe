"""The calorimeter: geometry, materials, axes of the cells, the measured angle."""
