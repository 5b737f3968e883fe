"""What plays the launcher of Kubeflow Pipelines in tests, around the command of a step. Not for anything else.

    python3 launcher.py --executor_input JSON -- COMMAND ARGUMENT...

As KFP's launcher does: input artifacts are brought from gs://bucket/key to /gcs/bucket/key, the command runs, and what
it left there is uploaded, with executor_output.json last, if it succeeded. SIGTERM does not get through to the command,
as it does not in Kubeflow. It needs the trainer's image and nothing else of this repository. $GCS_FOLDER stands for
/gcs where that cannot be made.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from caloscale.storage.objects import download, read_object, upload

GCS_FOLDER = Path(os.environ.get("GCS_FOLDER", "/gcs"))


def local(place: str) -> Path:
    """Where a step finds gs://bucket/key, or a file of its own below /gcs."""
    return GCS_FOLDER / place.removeprefix("gs://").removeprefix("/gcs/")


def uris(artifacts: dict[str, Any]) -> list[str]:
    """URIs of the artifacts of an executor input's part."""
    return [each["uri"] for group in artifacts.values() for each in group["artifacts"]]


def launch(executor_input: dict[str, Any], command: list[str]) -> int:
    """Run a step; its exit code."""
    inputs, outputs = executor_input["inputs"], executor_input["outputs"]
    for uri in uris(inputs.get("artifacts", {})):
        if (content := read_object(uri)) is None:
            download(uri, local(uri))  # a folder
        else:
            local(uri).parent.mkdir(parents=True, exist_ok=True)
            local(uri).write_bytes(content)
    for uri in uris(outputs.get("artifacts", {})):
        local(uri).parent.mkdir(parents=True, exist_ok=True)
    code = subprocess.run(command, check=False).returncode
    if code == 0:
        for uri in uris(outputs.get("artifacts", {})):
            if local(uri).exists():
                upload(local(uri), uri)
        written = local(outputs["outputFile"])
        if written.is_file():
            upload(written, f"gs://{written.relative_to(GCS_FOLDER)}")
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    option, given, dashes, *wrapped = sys.argv[1:]
    if (option, dashes) != ("--executor_input", "--"):
        sys.exit(__doc__)
    sys.exit(launch(json.loads(given), wrapped))
