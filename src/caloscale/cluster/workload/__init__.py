"""The objects of an attempt: a TFJob, JobSet, TrainJob or MPIJob, its pods, the ConfigMap of the progress."""
