"""The objects that an attempt consists of: a TFJob or a JobSet, its pods, the ConfigMap of the progress."""
