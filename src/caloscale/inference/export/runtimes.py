"""The generator in formats of other runtimes, beside the network it was made from.

`<model>/exports/<format>/`: the model in that format and `export.json`, which says what it was made from. Energy,
angle and noise go in, GeV per cell come out: preprocessing and units are part of the graph, and the model card
travels inside the file. An export is made when it is first asked for, and again when the network has changed.
"""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

import caloscale
from caloscale.errors import CheckpointError
from caloscale.inference.export.target import Onnx, Target, spread
from caloscale.inference.runtime import FILES, Format, open_file
from caloscale.models.card import CARD, DECIDED, GENERATOR, VERDICT
from caloscale.random import latent_noise
from caloscale.spec.block import Block, read_json
from caloscale.spec.workspace_layout import PHYSICS_FILE
from caloscale.storage.atomic import atomic_writer

FOLDER, RECORD = "exports", "export.json"
TOLERANCE = 1e-4
"""How far an exported model may be from the network: in a cell, as part of the shower's largest cell, and in the
sum of a shower."""
TOLERANCES: dict[Format, float] = {"onnx": TOLERANCE, "openvino": TOLERANCE, "openvino-int8": 0.5}
"""By format. int8 changes cells, and the gates of the validation judge how much it may: here damage is found only."""
CHECKED = 8
"""Showers over all that was trained on that are compared."""


class ExportRecord(Block):
    """What an exported model was made from, and how well it agrees."""

    source: str
    """As `source_sha256`: also of the version of the software, by which the operations follow."""
    content: str
    """SHA-256 of the exported files."""
    deviation: float = Field(ge=0)
    """Largest deviation from the network: of a cell, in its shower's largest cell, or of a sum, relative."""
    versions: dict[str, str]
    """Software that made it."""


def exported(folder: Path, format: Format) -> Path:
    """The file of a model in a format; made, and compared with the network, when it is absent or out of date.

    Raises CheckpointError for a folder that is no model or an export that disagrees, InputError when a package is
    missing, StorageError.
    """
    target = export_folder(folder, format)
    if not is_exported(folder, format):
        _export(folder, format, target)
    return target / FILES[format]


def export_folder(folder: Path, format: Format) -> Path:
    """Where the export of a model folder is kept."""
    return folder / FOLDER / format


def is_exported(folder: Path, format: Format) -> bool:
    """Whether an export is there and belongs to the network: then TensorFlow is not needed."""
    target = export_folder(folder, format)
    try:
        record = ExportRecord.model_validate_json((target / RECORD).read_bytes(), by_alias=True, by_name=False)
    except (OSError, ValidationError):
        return False
    return record.source == source_sha256(folder) and record.content == _content(target)


def _export(folder: Path, format: Format, target: Path) -> None:
    from caloscale.inference.export import formats
    from caloscale.inference.generator import load_generator

    generator = load_generator(folder)
    write, versions = formats.exporter(format)
    with atomic_writer(target, replace_folder=True) as temporary:
        temporary.mkdir()
        path = temporary / FILES[format]
        properties = metadata(Onnx(generator.card, generator.noise_size))
        write(generator, formats.named(generator, format), path, properties)
        inputs = {"noise": latent_noise(0, 0, CHECKED, generator.noise_size), **spread(generator.card, CHECKED)}
        truth = generator.network_cells_gev(*inputs.values()).numpy()
        cells = open_file(path, tuple(inputs))(*inputs.values())
        found = deviation(cells, truth, generator.card.preprocessing.threshold_gev)
        if not found <= TOLERANCES[format]:
            problem = f"differs from the network once it is exported to {format}: by {found:.1e}, allowed "
            problem += f"{TOLERANCES[format]:g}"
            remedy = f"use --runtime tensorflow, and report this with the versions {versions}"
            raise CheckpointError(problem, file=folder / GENERATOR, remedy=remedy)
        record = ExportRecord(
            source=source_sha256(folder),
            content=_content(temporary),
            deviation=found,
            versions=versions,
        )
        (temporary / RECORD).write_text(record.model_dump_json(by_alias=True, indent=2) + "\n", encoding="utf-8")


def metadata(target: Target) -> dict[str, str]:
    """What an exported model says of itself: origin and preprocessing, units and shapes, name to text."""
    return {
        "caloscale.version": caloscale.__version__,
        "caloscale.card": target.card.model_dump_json(by_alias=True),
        "caloscale.noiseSize": str(target.noise_size),
        **target.properties(),
    }


def deviation(ours: NDArray[np.floating], truth: NDArray[np.floating], threshold: float) -> float:
    """Largest deviation of a cell in units of its shower's largest, or of a sum of a shower, relative.

    ours, truth: (N, ...) in the unit of `threshold`. A cell at the threshold that rounding moved to its other side is
    no deviation: it differs by the threshold itself. NaN when a cell is not finite.
    """
    if ours.shape != truth.shape or not np.isfinite(ours).all():
        return math.nan
    difference = (ours.astype(np.float64) - truth).reshape(len(truth), -1)
    difference[np.abs(np.abs(difference) - threshold) <= TOLERANCE * threshold] = 0
    cells = truth.reshape(len(truth), -1)
    smallest = np.finfo(np.float32).tiny
    largest, total = np.maximum(cells.max(axis=1), smallest), np.maximum(cells.sum(axis=1, dtype=float), smallest)
    return float(max((np.abs(difference).max(axis=1) / largest).max(), (np.abs(difference.sum(axis=1)) / total).max()))


def verdict(folder: Path, format: Format) -> dict[str, Any]:
    """What the validation decided on a model in a format; what was not validated is not assessed.

    Formats that agree with the network but for rounding have its verdict, int8 its own. Networks in `training/model` of
    a run have that of its validation. Raises CheckpointError for a file that cannot be read.
    """
    path, how = folder / VERDICT, "validate again, or copy the whole model folder"
    if format == "openvino-int8":
        path, how = export_folder(folder, format) / VERDICT, "judge it again by caloscale validate --int8"
        if not is_exported(folder, format):
            return {"decision": "not assessed", "reasons": [f"this network was not validated as {format}"]}
    elif not path.exists() and (of_run := _verdict_of_run(folder)) is not None:
        return of_run
    try:
        decided: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"decision": "not assessed", "reasons": [f"the model folder has no {path.relative_to(folder)}"]}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot be read: {error}", file=path, remedy=how) from error
    return decided


def rejection(folder: Path, format: Format = "onnx") -> tuple[str, ...]:
    """The warning that its gates rejected a generator, where they did. Raises as `verdict`."""
    rejected = verdict(folder, format)["decision"] == "rejected"
    return (f"the gates of its run rejected the generator in {folder}",) if rejected else ()


def _verdict_of_run(folder: Path) -> dict[str, Any] | None:
    """The verdict that the run of a folder `training/model` has on these networks; None: on none, or on others."""
    path = folder.resolve() / "../.." / PHYSICS_FILE
    found = read_json(path, remedy="validate again") if path.is_file() else {}
    return {name: found[name] for name in DECIDED} if found.get("networkSha256") == source_sha256(folder) else None


def source_sha256(folder: Path) -> str:
    """SHA-256 of the network, its card and the version of the software. Raises CheckpointError."""
    digest = hashlib.sha256(caloscale.__version__.encode())
    for name in (GENERATOR, CARD):
        try:
            digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
        except OSError as error:
            remedy = "give the folder `model` of a training"
            raise CheckpointError(f"cannot be read: {error.strerror}", file=folder / name, remedy=remedy) from error
    return digest.hexdigest()


def _content(target: Path) -> str:
    digest = hashlib.sha256()
    others = (target / RECORD, target / VERDICT)
    for path in sorted(p for p in target.rglob("*") if p.is_file() and p not in others):
        digest.update(str(path.relative_to(target)).encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
