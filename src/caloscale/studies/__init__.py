"""Studies: sweeps over run configurations or planner inputs, with resumable points, tables, figures and statements."""
