"""Training curves for TensorBoard, written without it: tf.summary.scalar wants the package installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf


def open_scalars(folder: Path | None) -> Any:
    """A writer of event files into a folder, or one that writes nothing; close it."""
    if folder is None:
        return tf.summary.create_noop_writer()
    return tf.summary.create_file_writer(str(folder))


def write_scalars(writer: Any, step: int, figures: Mapping[str, float]) -> None:
    """One point of each curve, in the format of TensorBoard's scalars plugin."""
    metadata = tf.compat.v1.SummaryMetadata(
        plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"), data_class="DATA_CLASS_SCALAR"
    )
    with writer.as_default(step=step):
        for name, value in figures.items():
            tf.summary.write(name, tf.constant(value, tf.float32), metadata=metadata)
