"""Classifiers of images: their parameters by the papers' tables; images come back from their files."""

import io

import numpy as np
import pytest

from caloscale.studies.images import ClassifierInputs, InputInputs, image_batches, time_classifier, time_input
from caloscale.tensorflow_import import load_tensorflow_quietly

ALEXNET = {
    "convolutions": [(11 * 11 * 3, 96), (5 * 5 * 48, 256), (3 * 3 * 256, 384), (3 * 3 * 192, 384), (3 * 3 * 192, 256)],
    "dense": [(6 * 6 * 256, 4096), (4096, 4096), (4096, 1000)],
}
"""Inputs and outputs of each layer of the paper; two halves of a layer see half of the channels each."""


@pytest.mark.integration
def test_parameters_of_the_classifiers():
    """GoogLeNet: 6,998,552 in the weights of its authors; ResNet50: 25,636,712 in Keras's list, of which 53,120 are
    running statistics."""
    load_tensorflow_quietly()
    from caloscale.studies.images import build_classifier

    alexnet = sum(outputs * (inputs + 1) for layers in ALEXNET.values() for inputs, outputs in layers)
    assert alexnet == 60_965_224
    wanted = {"alexnet": alexnet, "googlenet": 6_998_552, "resnet50": 25_636_712}
    for name, parameters in wanted.items():
        network = build_classifier(name)
        assert network.count_params() == parameters
        assert network.output_shape == (None, 1000)


@pytest.mark.parametrize("cache", [False, True])
def test_images_and_labels_come_back_from_their_files(tmp_path, cache):
    """Each image is a crop of what another library decodes, perhaps mirrored."""
    load_tensorflow_quietly()
    import tensorflow as tf
    from PIL import Image

    from caloscale.studies.images import write_images

    files = write_images(tmp_path / "images", 6, 2)
    asked = InputInputs(
        images=6, batch=3, cache=cache, interleave=cache, parallel_map=cache, prefetch=cache, shuffle=True
    )
    pictures = {}
    for record in tf.data.TFRecordDataset(files).as_numpy_iterator():
        feature = tf.train.Example.FromString(record).features.feature
        label = feature["image/class/label"].int64_list.value[0]
        pictures[label - 1] = np.asarray(Image.open(io.BytesIO(feature["image/encoded"].bytes_list.value[0])))
    assert sorted(pictures) == list(range(6))
    seen = []
    for images, labels in image_batches(files, asked, crop=250).take(2).as_numpy_iterator():
        assert images.shape == (3, 250, 250, 3) and images.dtype == np.float32
        for image, label in zip(np.round((images + 1) * 127.5), labels):
            whole = pictures[label].astype(np.float32)
            crops = [whole[y : y + 250, x : x + 250] for y in range(7) for x in range(7)]
            assert min(np.abs(image - side).mean() for crop in crops for side in (crop, crop[:, ::-1])) < 2
            seen.append(label)
    assert sorted(seen) == list(range(6))


def test_a_pipeline_has_only_the_parts_that_it_was_given(tmp_path):
    """TensorFlow's default optimizations add a prefetch and parallel maps to any pipeline."""
    load_tensorflow_quietly()
    from caloscale.studies.images import write_images

    options = image_batches(write_images(tmp_path / "images", 4, 1), InputInputs(images=4, batch=2)).options()
    assert options.experimental_optimization.apply_default_optimizations is False


def test_the_share_of_waiting_is_part_of_the_time(tmp_path):
    found = time_input({"images": 8, "shards": 2, "batch": 4, "epochs": 2, "stepMilliseconds": 0}, tmp_path)
    assert found["steps"] == 2 and 0 < found["waiting"] <= 1 and found["imagesPerSecond"] > 0
    assert len(list((tmp_path / "images-8-2").iterdir())) == 2


def test_workers_share_a_global_batch():
    assert ClassifierInputs(workers=4, global_batch=8).batch() == 2


@pytest.mark.long
def test_workers_of_a_classifier_keep_equal_weights():
    found = time_classifier({"network": "googlenet", "workers": 2, "batchPerWorker": 1, "steps": 2})
    assert found["weightsAgree"] and found["parameters"] == 6_998_552
    assert found["stepSeconds"] == pytest.approx(found["exchangeSeconds"] + found["computeSeconds"])
