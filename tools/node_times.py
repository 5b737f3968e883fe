"""Times of images and of the cluster of real nodes: ``python -m tools.node_times --output FILE`` (root, ten minutes).

Images are built from nothing, again without a change, and after a change of our code; the cluster is started with cold
caches of files (dropped before) and with warm ones.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from caloscale import __version__
from caloscale.bench.machine import describe_machine
from caloscale.storage.atomic import atomic_writer
from tools.cluster.native import NativeCluster
from tools.images.base import IMAGE
from tools.images.engines import Build, Engine, find_engine
from tools.images.machine import pip_settings, revision, secrets, wheel_folders
from tools.images.targets import REGISTRY, ROOT, TARGETS, qualified

MEASURED = ("trainer-cpu", "operator")
STARTS = 3
CHANGED = Path("src/caloscale/__init__.py")
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def image_seconds(engine: Engine, name: str) -> dict[str, float]:
    """Seconds to build an image from nothing, without a change, and after a change of our code."""
    target, settings = TARGETS[name], pip_settings(os.environ)
    base = IMAGE if engine.image_id(IMAGE) else ""
    with secrets(settings, os.environ) as files, _copy() as context:
        image = qualified(target.image(REGISTRY)) + "-timed"
        wanted = Build(target, image, revision(ROOT), __version__, base, None, files, wheel_folders(settings))
        command = engine.build(wanted, context)
        try:
            nothing = _seconds(engine, [*command[:2], "--no-cache", *command[2:]])
            _seconds(engine, command)  # what was built from nothing is not found again by all engines
            unchanged = _seconds(engine, command)
            with (context / CHANGED).open("a", encoding="utf-8") as file:
                file.write("# a change\n")
            changed = _seconds(engine, command)
        finally:
            subprocess.run([engine.program, "rmi", "--force", image], check=False)
    return {"fromNothing": nothing, "unchanged": unchanged, "changedCode": changed}


def _seconds(engine: Engine, command: list[str]) -> float:
    started = time.monotonic()
    subprocess.run(command, env=engine.environment(), check=True)
    return time.monotonic() - started


@contextmanager
def _copy() -> Iterator[Path]:
    """A copy of the files that Git knows, so that a change is nobody's loss."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    with TemporaryDirectory(prefix="caloscale-times-") as folder:
        for name in filter(None, listed.split("\0")):
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, Path(folder) / name)
        yield Path(folder)


def cluster_seconds() -> dict[str, float]:
    """Seconds until three nodes with their operators are ready: cold once, warm the median of some."""
    os.sync()
    DROP_CACHES.write_text("3\n", encoding="utf-8")
    cold, *warm = (_start() for _ in range(1 + STARTS))
    return {"coldFiles": cold, "warmFiles": statistics.median(warm)}


def _start() -> float:
    started = time.monotonic()
    with NativeCluster():
        return time.monotonic() - started


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says; absent: that of this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="the figures as JSON")
    return parser.parse_args(arguments)


def main() -> None:
    """Measure all of it and write the result."""
    given = options()
    machine = describe_machine().model_dump(mode="json", by_alias=True)
    engine = find_engine()
    found = {
        "clusterUpSeconds": cluster_seconds(),
        "imageSeconds": {name: image_seconds(engine, name) for name in MEASURED},
        "engine": engine.name,
        "machine": machine,
    }
    with atomic_writer(given.output) as temporary:
        temporary.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
