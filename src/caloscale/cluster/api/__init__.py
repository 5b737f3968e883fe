"""The custom resource TrainingRun: its schema, its rules, the definition that a cluster gets."""
