"""A convolution of images in three layouts of its data: NHWC, NCHW, and as a matrix product of patches.

TensorFlow's convolution on processors knows NHWC only: NCHW is transposed before it and behind it there.

`time_layout` starts a process for each point, so that its largest memory is the layout's.
"""

import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import Field

from caloscale.processor import peak_memory_mib
from caloscale.spec.block import Block
from caloscale.studies.points import validated
from caloscale.studies.ranks import run_ranks
from caloscale.tensorflow_import import load_tensorflow_quietly

Layer = Literal["alexnet2", "googlenet2", "resnet4"]
Layout = Literal["NHWC", "NCHW", "matrix"]


class Convolution(NamedTuple):
    """A convolution with stride 1 that keeps the size of its images."""

    size: int
    """Rows and columns of its images."""
    channels: int
    filters: int
    width: int
    """Rows and columns of the kernel."""


LAYERS: dict[Layer, Convolution] = {
    "alexnet2": Convolution(27, 48, 128, 5),
    "googlenet2": Convolution(56, 64, 192, 3),
    "resnet4": Convolution(14, 256, 256, 3),
}
"""A half of AlexNet's second convolution, GoogLeNet's second one, and one of a block of ResNet50's fourth stage."""


class LayoutInputs(Block):
    """A layer, how its data are laid out, and how many images it gets."""

    layer: Layer = "googlenet2"
    layout: Layout = "NHWC"
    """NHWC, NCHW, or matrix: patches of NHWC images times the kernel."""
    batch: int = Field(8, ge=1)
    steps: int = Field(5, ge=1)
    """Steps that are timed, after one that is not."""
    threads: int = Field(1, ge=1)


def time_layout(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Forward pass and both gradients of a convolution, in a separate process.

    Result: ``forwardSeconds`` and ``stepSeconds`` (forward and both gradients), medians; ``gflops`` of the step;
    ``memoryMib``, by which the largest memory of the process exceeds that with TensorFlow loaded; ``difference``, the
    largest one to NHWC in output and gradients, relative to the largest value.

    Raises ConfigurationError, TrainingError.
    """
    asked = validated(LayoutInputs, inputs)
    return run_ranks("layouts", 1, asked.as_values(), asked.threads)


def work(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The result of `time_layout`."""
    import numpy as np

    load_tensorflow_quietly()
    import tensorflow as tf

    asked = validated(LayoutInputs, settings)
    layer, on_gpu = LAYERS[asked.layer], bool(tf.config.list_physical_devices("GPU"))
    rng = np.random.default_rng(1)
    shape = (layer.width, layer.width, layer.channels, layer.filters)
    kernel = tf.constant(rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(np.prod(shape[:3]))))
    images = tf.constant(rng.standard_normal((asked.batch, layer.size, layer.size, layer.channels), np.float32))
    above = tf.constant(rng.standard_normal((asked.batch, layer.size, layer.size, layer.filters), np.float32))
    baseline = peak_memory_mib()
    given = [tf.transpose(x, (0, 3, 1, 2)) if asked.layout == "NCHW" else x for x in (images, above)]

    def convolved(x: Any, layout: Layout) -> Any:
        if layout == "NCHW" and not on_gpu:
            return tf.transpose(tf.nn.conv2d(tf.transpose(x, (0, 2, 3, 1)), kernel, 1, "SAME"), (0, 3, 1, 2))
        if layout != "matrix":
            return tf.nn.conv2d(x, kernel, 1, "SAME", data_format=layout)
        patches = tf.image.extract_patches(x, (1, layer.width, layer.width, 1), (1,) * 4, (1,) * 4, "SAME")
        return tf.linalg.matmul(patches, tf.reshape(kernel, (-1, layer.filters)))

    def with_gradients(x: Any, upstream: Any, layout: Layout) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((x, kernel))
            outputs = convolved(x, layout)
        return outputs, *tape.gradient(outputs, (x, kernel), upstream)

    def median_seconds(function: Any) -> float:
        function()
        seconds = []
        for _ in range(asked.steps):
            start = time.perf_counter()
            for one in tf.nest.flatten(function()):
                one.numpy()
            seconds.append(time.perf_counter() - start)
        return float(np.median(seconds))

    forward = tf.function(lambda: convolved(given[0], asked.layout), autograph=False)
    step = tf.function(lambda: with_gradients(given[0], given[1], asked.layout), autograph=False)
    timed = {"forwardSeconds": median_seconds(forward), "stepSeconds": median_seconds(step)}
    memory = peak_memory_mib() - baseline
    computed = [x.numpy() for x in step()]
    if asked.layout == "NCHW":
        computed[:2] = [np.moveaxis(x, 1, 3) for x in computed[:2]]
    expected = [x.numpy() for x in with_gradients(images, above, "NHWC")]
    difference = max(float(np.abs(x - truth).max() / np.abs(truth).max()) for x, truth in zip(computed, expected))
    products = 2 * asked.batch * layer.size**2 * np.prod(shape)
    return {
        **timed,
        "gflops": float(3 * products / timed["stepSeconds"] / 1e9),
        "memoryMib": memory,
        "difference": difference,
    }
