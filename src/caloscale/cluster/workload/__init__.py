"""The objects of an attempt: a TFJob, JobSet, TrainJob or MPIJob, its pods, the TrainingProgress."""
