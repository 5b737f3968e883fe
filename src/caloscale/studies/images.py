"""Classifiers of images for the scaling study, and their input: networks, TFRecords in ImageNet's format, the pipeline.

AlexNet: Krizhevsky, Sutskever, Hinton, NIPS 2012, with its layers in two halves. GoogLeNet: Szegedy et al.,
arXiv:1409.4842 (Inception v1), without the auxiliary classifiers. ResNet50: He et al., arXiv:1512.03385, of Keras.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from caloscale.errors import ConfigurationError
from caloscale.spec.block import Block
from caloscale.studies.points import validated
from caloscale.studies.ranks import run_ranks, slowest_step
from caloscale.tensorflow_import import load_tensorflow_quietly

CLASSES = 1000
Network = Literal["alexnet", "googlenet", "resnet50"]
_INCEPTION = (
    # 1x1; reduction and 3x3; reduction and 5x5; projection of the pool. None: a pool that halves the image.
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    None,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    None,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)
"""Table 1 of the paper from inception (3a) on."""


def build_classifier(network: Network) -> Any:
    """A Keras model, images (B, S, S, 3) -> logits (B, CLASSES); S is 227 for AlexNet and 224 for the others."""
    import tensorflow as tf

    if network == "resnet50":
        return tf.keras.applications.ResNet50(weights=None, classes=CLASSES, classifier_activation=None)
    images = tf.keras.Input((IMAGE_SIZES[network], IMAGE_SIZES[network], 3))
    logits = (_alexnet if network == "alexnet" else _googlenet)(images)
    return tf.keras.Model(images, logits, name=network)


IMAGE_SIZES: dict[Network, int] = {"alexnet": 227, "googlenet": 224, "resnet50": 224}


def _alexnet(images: Any) -> Any:
    import tensorflow as tf

    layers = tf.keras.layers

    def halves(x: Any, filters: int, width: int) -> Any:
        parts = [x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]]
        return layers.Concatenate()([_convolution(part, filters // 2, width) for part in parts])

    def normalised(x: Any) -> Any:
        # Section 3.3: n = 5, k = 2, alpha = 1e-4, beta = 0.75.
        response = layers.Lambda(lambda y: tf.nn.local_response_normalization(y, 2, 2.0, 1e-4, 0.75))
        return layers.MaxPooling2D(3, 2)(response(x))

    x = normalised(_convolution(images, 96, 11, 4, "valid"))
    x = normalised(halves(x, 256, 5))
    x = halves(_convolution(x, 384, 3), 384, 3)
    x = layers.Flatten()(layers.MaxPooling2D(3, 2)(halves(x, 256, 3)))
    for _ in range(2):
        x = layers.Dropout(0.5)(layers.Dense(4096, "relu")(x))
    return layers.Dense(CLASSES)(x)


def _googlenet(images: Any) -> Any:
    import tensorflow as tf

    layers = tf.keras.layers
    x = layers.MaxPooling2D(3, 2, "same")(_convolution(images, 64, 7, 2))
    x = _convolution(_convolution(x, 64, 1), 192, 3)
    x = layers.MaxPooling2D(3, 2, "same")(x)
    for widths in _INCEPTION:
        if widths is None:
            x = layers.MaxPooling2D(3, 2, "same")(x)
            continue
        one, reduced3, three, reduced5, five, pooled = widths
        branches = [
            _convolution(x, one, 1),
            _convolution(_convolution(x, reduced3, 1), three, 3),
            _convolution(_convolution(x, reduced5, 1), five, 5),
            _convolution(layers.MaxPooling2D(3, 1, "same")(x), pooled, 1),
        ]
        x = layers.Concatenate()(branches)
    return layers.Dense(CLASSES)(layers.Dropout(0.4)(layers.GlobalAveragePooling2D()(x)))


def _convolution(x: Any, filters: int, width: int, stride: int = 1, padding: str = "same") -> Any:
    import tensorflow as tf

    return tf.keras.layers.Conv2D(filters, width, stride, padding, activation="relu")(x)


class ClassifierInputs(Block):
    """Steps of a classifier on several workers."""

    network: Network = "resnet50"
    workers: int = Field(1, ge=1, le=64)
    """Processes; each averages its gradients with those of the others in every step."""
    threads: int = Field(1, ge=1)
    batch_per_worker: int | None = Field(None, ge=1)
    """Images of a worker's step (weak scaling); absent: globalBatch over the workers (strong scaling)."""
    global_batch: int = Field(8, ge=1)
    """Images of a step of all workers."""
    steps: int = Field(5, ge=1)
    """Steps that are timed, after one that is not."""
    epoch_images: int = Field(1_281_167, ge=1)

    def batch(self) -> int:
        """Images of a worker's step; raises ConfigurationError when the workers do not divide the global batch."""
        if self.batch_per_worker is None and self.global_batch % self.workers:
            problem = "is no multiple of the workers"
            raise ConfigurationError(problem, field="globalBatch", value=self.global_batch, remedy="use a multiple")
        return self.batch_per_worker or self.global_batch // self.workers


def time_classifier(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Training steps on synthetic images with an all-reduce of all gradients.

    Result: `slowest_step`; ``imagesPerSecond`` of all; ``epochHours``; ``batchPerWorker``; ``parameters``;
    ``weightsAgree``, whether all workers have the same weights in the end. Raises ConfigurationError, TrainingError.
    """
    asked = validated(ClassifierInputs, inputs)
    settings = {"network": asked.network, "steps": asked.steps, "batch": asked.batch()}
    found = run_ranks("images", asked.workers, settings, asked.threads)
    rate = asked.workers * asked.batch() / found["stepSeconds"]
    hours = asked.epoch_images / rate / 3600
    return {**found, "imagesPerSecond": rate, "epochHours": hours, "batchPerWorker": asked.batch()}


class InputInputs(Block):
    """An input pipeline of images, and the step that consumes its batches."""

    images: int = Field(256, ge=1)
    """JPEG of 256 x 256 pixels, in TFRecords of ImageNet's format."""
    shards: int = Field(4, ge=1)
    batch: int = Field(32, ge=1)
    epochs: int = Field(2, ge=1)
    """Passes; the first one fills the cache, and only the later ones are timed when there are several."""
    step_milliseconds: float = Field(50.0, ge=0)
    """Time of a step on an accelerator, during which the processor is free for the pipeline."""
    interleave: bool = False
    """Read several files at a time."""
    shuffle: bool = False
    """Shuffle within 1,024 images."""
    parallel_map: bool = False
    """Decode and crop several images at a time."""
    prefetch: bool = False
    """Prepare the next batches during a step."""
    cache: bool = False
    """Keep decoded and cropped images in memory."""


def time_input(inputs: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Batches of a pipeline: ``imagesPerSecond`` with the steps, and ``waiting``, the share of time without a batch.

    folder: where images are kept that points share. Raises ConfigurationError.
    """
    asked = validated(InputInputs, inputs)
    if asked.batch > asked.images:
        raise ConfigurationError("is larger than an epoch", field="batch", value=asked.batch, remedy="give more images")
    load_tensorflow_quietly()
    files = write_images(folder / f"images-{asked.images}-{asked.shards}", asked.images, asked.shards)
    batches = iter(image_batches(files, asked))
    per_epoch = asked.images // asked.batch
    if asked.epochs > 1:
        for _ in range(per_epoch):
            next(batches)
    steps, waited, start = per_epoch * max(1, asked.epochs - 1), 0.0, time.perf_counter()
    for _ in range(steps):
        clock = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - clock
        time.sleep(asked.step_milliseconds / 1000)
    seconds = time.perf_counter() - start
    return {"imagesPerSecond": steps * asked.batch / seconds, "waiting": waited / seconds, "steps": steps}


def write_images(folder: Path, images: int, shards: int) -> list[str]:
    """Synthetic JPEG images (squares and noise, as long to decode as photographs) with labels as TFRecords.

    Files that are there are kept.
    """
    import numpy as np
    import tensorflow as tf

    files = [folder / f"train-{shard:05d}-of-{shards:05d}" for shard in range(shards)]
    if all(file.is_file() for file in files):
        return list(map(str, files))
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    for shard, file in enumerate(files):
        temporary = file.with_suffix(".part")
        with tf.io.TFRecordWriter(str(temporary)) as writer:
            for number in range(shard, images, shards):
                coarse = rng.integers(24, 232, (32, 32, 3), np.uint8).repeat(8, axis=0).repeat(8, axis=1)
                jpeg = tf.io.encode_jpeg(coarse + rng.integers(-24, 25, coarse.shape, np.int8).view(np.uint8)).numpy()
                feature = {
                    "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
                    "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[1 + number % CLASSES])),
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
        temporary.rename(file)
    return list(map(str, files))


def image_batches(files: list[str], asked: InputInputs, crop: int = 224) -> Any:
    """Endless batches: images (B, crop, crop, 3) float32, -1 to 1, randomly cropped and mirrored; labels (B,), 0 to
    999.
    """
    import tensorflow as tf

    automatic = tf.data.AUTOTUNE
    features = {
        "image/encoded": tf.io.FixedLenFeature((), tf.string),
        "image/class/label": tf.io.FixedLenFeature((), tf.int64),
    }

    def decoded(record: Any) -> Any:
        example = tf.io.parse_single_example(record, features)
        image = tf.image.random_crop(tf.io.decode_jpeg(example["image/encoded"], 3), (crop, crop, 3))
        image = tf.cast(tf.image.random_flip_left_right(image), tf.float32) / 127.5 - 1
        return image, example["image/class/label"] - 1

    names = tf.data.Dataset.from_tensor_slices(files)
    reader: Callable[[Any], Any] = tf.data.TFRecordDataset
    records = names.interleave(reader, num_parallel_calls=automatic) if asked.interleave else names.flat_map(reader)
    if asked.shuffle and not asked.cache:
        records = records.shuffle(1024, seed=1)  # before decoding: the buffer is filled anew in each epoch
    images = records.map(decoded, num_parallel_calls=automatic if asked.parallel_map else None)
    if asked.cache:
        images = images.cache()
        images = images.shuffle(1024, seed=1) if asked.shuffle else images
    batches = images.batch(asked.batch, drop_remainder=True).repeat()
    batches = batches.prefetch(automatic) if asked.prefetch else batches
    options = tf.data.Options()
    # Otherwise TensorFlow adds parallel maps and a prefetch by itself, and every pipeline is the whole one.
    options.experimental_optimization.apply_default_optimizations = False
    return batches.with_options(options)


def work(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Time the steps of a worker; rank 0 has the result but the rates."""
    load_tensorflow_quietly()
    import numpy as np
    import tensorflow as tf
    from mpi4py import MPI  # it joins the job, which only the processes of mpiexec may

    from caloscale.models.optimizers import pack, unpack

    world = MPI.COMM_WORLD
    tf.keras.utils.set_random_seed(1)
    network = build_classifier(settings["network"])
    variables = network.trainable_variables
    optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9)
    size, batch = IMAGE_SIZES[settings["network"]], settings["batch"]
    rng = np.random.default_rng(world.rank)
    images = tf.constant(rng.standard_normal((batch, size, size, 3), np.float32))
    labels = tf.constant(rng.integers(0, CLASSES, batch))
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(autograph=False)
    def gradients() -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, network(images, training=True))
        return pack(tape.gradient(loss, [variable.value for variable in variables]))

    @tf.function(autograph=False)
    def apply(vector: Any) -> None:
        optimizer.apply(unpack(vector, variables), variables)

    def averaged_step() -> float:
        """A step; the seconds of its exchange."""
        vector = np.array(gradients())
        clock = time.perf_counter()
        world.Allreduce(MPI.IN_PLACE, vector)
        vector /= world.size
        waited = time.perf_counter() - clock
        apply(tf.constant(vector))
        return waited

    optimizer.build(variables)
    times = slowest_step(world, settings["steps"], averaged_step)
    first = np.concatenate([np.array(variable).ravel()[:16] for variable in variables])
    every = world.gather(first)
    if every is None:
        return None
    agree = all(np.array_equal(each, first) for each in every)
    return {**times, "parameters": network.count_params(), "weightsAgree": agree}
