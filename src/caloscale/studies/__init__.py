"""Studies: sweeps over run documents or planner inputs, with resumable points, tables, figures and statements."""
