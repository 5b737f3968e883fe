"""The small detector of these tests, for processes that import no TensorFlow."""

DETECTOR = (
    "data.geometry.cells=[7, 6, 4]",
    "data.geometry.layers=[{count: 4, absorberMm: 4}]",
    "data.geometry.depthMm=30",
    "data.preprocessing.rebin=[1, 1, 1]",
    "data.showers=40",
    "train.precision=float32",
    "data.source=nowhere",
    "data.validationFraction=0.2",
    "model.latentSize=6",
    "train.batchPerReplica=8",
    "train.epochs=2",
    "train.maxMinutes=null",
)
