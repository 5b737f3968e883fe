"""A worker of the elastic training: it gets weights and numbers of images, and sends the sum of the gradients."""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Client
from pathlib import Path

import numpy as np

from caloscale.studies.digits import CLASSES, DIGITS_FILE, PIXELS, Network


def main(folder: Path) -> None:
    """Until the coordinator closes the connection."""
    with np.load(folder / DIGITS_FILE) as file:
        images, labels = file["images"], file["labels"]
    key = bytes.fromhex(os.environ["CALOSCALE_WORKER_KEY"])
    network = None
    with Client(str(folder / "coordinator"), "AF_UNIX", authkey=key) as connection:
        connection.send(os.getpid())
        while True:
            try:
                weights, chosen = connection.recv()
            except (EOFError, ConnectionError):
                return
            network = network or Network((len(weights) - CLASSES) // (PIXELS + CLASSES + 1), seed=0)
            network.weights = weights
            connection.send(network.gradient(images[chosen], labels[chosen]) * len(chosen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
