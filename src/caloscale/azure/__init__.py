"""Azure ML: the plan of a run as a job of the second cloud."""
