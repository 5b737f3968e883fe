"""Write a released generator for a target, and check a file by repeating the target's call."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, ValidationError

import caloscale
from caloscale.errors import CheckpointError, InputError, StorageError
from caloscale.inference.export.ddml import Ddml
from caloscale.inference.export.par04 import Par04
from caloscale.inference.export.runtimes import CHECKED, RECORD, TOLERANCES, deviation, metadata, source_sha256, verdict
from caloscale.inference.export.target import Onnx, OpenVino, OpenVinoInt8, Target, ranges, text_of
from caloscale.inference.runtime import FILES, PACKAGES, load, open_file, openvino_core
from caloscale.models.card import read_card
from caloscale.progress import bar
from caloscale.showers.primaries import rows
from caloscale.spec import Data
from caloscale.spec.block import Block
from caloscale.storage.atomic import atomic_writer

TARGETS: dict[str, type[Target]] = {target.name: target for target in (Onnx, Par04, Ddml, OpenVino, OpenVinoInt8)}
README = "README.md"
PRIMARIES = 100
"""Showers of a check."""
_TOGETHER = 20
"""Showers that the network computes at once in a check."""
OUTSIDE = "clamped to the range in the graph; the shower is scaled to the primary's energy"
"""What a file does with an energy that was not trained, in its metadata."""


class TargetRecord(Block):
    """What was written for a target: `export.json` in its folder."""

    target: str
    model: str
    """Folder of the model that it was made from."""
    source: str
    """SHA-256 of its network and card."""
    files: tuple[str, ...]
    """All files of the folder, but for this one."""
    deviation: float = Field(ge=0)
    """Largest deviation from the network, see `runtimes.deviation`."""
    versions: dict[str, str]
    """Software that made it."""


class Check(Block):
    """How a file agrees with its network in the target's own call."""

    file: str
    target: str
    showers: int
    """Showers that were compared: batch 1, one thread, optimisation of the graph off."""
    deviation: float
    """Largest deviation of a cell, in its shower's largest, or of a sum, relative."""
    tolerance: float
    """What is allowed."""
    milliseconds_per_shower: float
    """Median of the calls."""


def export_model(model: Path, target: str, output: Path) -> TargetRecord:
    """Write the generator of a model folder for a target into another folder, with a README.

    Raises InputError for a target that is not known or cannot hold the generator, CheckpointError for a folder that is
    no model and for a file that disagrees with the network, StorageError for an output folder with other files.
    """
    kind = _target(target)
    card = read_card(model)
    _refuse_foreign(output)
    for package in PACKAGES[kind.format]:
        load(package)
    decided = verdict(model, kind.format)
    if decided["decision"] == "rejected" and kind.format == "openvino-int8":
        problem = f"is rejected by its gates as {kind.format}"
        raise CheckpointError(problem, file=model, field="--target", value=target, remedy="use another target")
    from caloscale.inference.export import formats
    from caloscale.inference.generator import load_generator

    generator = load_generator(model)
    chosen = kind(card, generator.noise_size)
    write, versions = formats.exporter(kind.format)
    name, source = FILES[kind.format], source_sha256(model)
    with atomic_writer(output, replace_folder=True) as folder:
        folder.mkdir()
        properties = _properties(chosen, decided, source)
        write(generator, chosen.graph(generator), folder / name, properties)
        found, _ = _compare(chosen, folder / name, generator, CHECKED, blamed=model)
        (folder / README).write_text(_readme(chosen, name, properties, generator.run.data), encoding="utf-8")
        record = TargetRecord(
            target=target,
            model=str(model.resolve()),
            source=source,
            files=tuple(sorted(path.name for path in folder.iterdir())),
            deviation=found,
            versions=versions,
        )
        (folder / RECORD).write_text(record.model_dump_json(by_alias=True, indent=2) + "\n", encoding="utf-8")
    return record


def check_file(file: Path, model: Path | None = None) -> Check:
    """Repeat the target's call of a file for 100 primaries and compare with the network of its model folder.

    model: absent, the folder that `export.json` in the folder of the file names. Raises InputError for a file that
    caloscale did not write or another version wrote, CheckpointError for another network and for a file that disagrees.
    """
    properties = _metadata(file)
    if "caloscale.target" not in properties:
        problem = "was not written by caloscale export"
        raise InputError(problem, file=file, remedy="give generator.onnx or generator.xml of its folder")
    if (written_by := properties["caloscale.version"]) != caloscale.__version__:
        problem = f"was written by another version, this is {caloscale.__version__}"
        remedy = "export the model again, or check with that version"
        raise InputError(problem, file=file, field="caloscale.version", value=written_by, remedy=remedy)
    kind = _target(properties["caloscale.target"])
    folder = model or _model_of(file)
    if source_sha256(folder) != properties["caloscale.source"]:
        problem = f"is not the model that {file} was made from"
        raise CheckpointError(problem, file=folder, remedy="give that model with --model, or export this one again")
    from caloscale.inference.generator import load_generator

    generator = load_generator(folder)
    chosen = kind(generator.card, generator.noise_size)
    found, milliseconds = _compare(chosen, file, generator, PRIMARIES, blamed=file)
    return Check(
        file=str(file),
        target=kind.name,
        showers=PRIMARIES,
        deviation=found,
        tolerance=TOLERANCES[kind.format],
        milliseconds_per_shower=round(milliseconds, 3),
    )


def _target(name: str) -> type[Target]:
    if name not in TARGETS:
        raise InputError("is not known", field="target", value=name, remedy="choose " + " or ".join(TARGETS))
    return TARGETS[name]


def _refuse_foreign(output: Path) -> None:
    """An output folder is new, empty, or an earlier export."""
    if output.exists() and not output.is_dir():
        raise StorageError("is a file", file=output, remedy="give a folder that is new or empty")
    names = sorted(path.name for path in output.iterdir()) if output.is_dir() else []
    record = _record(output / RECORD)
    foreign = [name for name in names if record is None or name not in (*record.files, RECORD)]
    if foreign:
        problem = f"holds files of others: {', '.join(foreign[:3])}{' ...' if len(foreign) > 3 else ''}"
        remedy = "give a folder that is new or empty, or an earlier export"
        raise StorageError(problem, file=output, field="--output", remedy=remedy)


def _record(path: Path) -> TargetRecord | None:
    try:
        return TargetRecord.model_validate_json(path.read_bytes(), by_alias=True, by_name=False)
    except (OSError, ValidationError):
        return None


def _model_of(file: Path) -> Path:
    record = _record(file.parent / RECORD)
    if record is None or not Path(record.model).is_dir():
        problem, folder = "the model that it was made from is not known", None
        if record is not None:
            problem, folder = "its model is not there any more", record.model
        remedy = "give the model folder with --model"
        raise InputError(problem, file=file, field="--model", value=folder, remedy=remedy)
    return Path(record.model)


def _metadata(file: Path) -> dict[str, str]:
    """What a file says about itself. Raises InputError."""
    remedy = "give generator.onnx or generator.xml of an export"
    if not file.is_file():
        raise InputError("is not a file", file=file, remedy=remedy)
    if file.suffix not in (".onnx", ".xml"):
        raise InputError("is neither ONNX nor OpenVINO", file=file, value=file.suffix, remedy=remedy)
    try:
        if file.suffix == ".xml":
            info = openvino_core().read_model(file).get_rt_info()
            names = ("target", "version", "source") if "caloscale" in info else ()
            return {f"caloscale.{name}": info["caloscale"][name].astype(str) for name in names}
        return {one.key: one.value for one in load("onnx").load(str(file)).metadata_props}
    except InputError:
        raise
    except Exception as error:  # protobuf and OpenVINO raise their own
        raise InputError(f"cannot be read: {' '.join(str(error).split())[:200]}", file=file, remedy=remedy) from error


def _properties(target: Target, decided: dict[str, Any], source: str) -> dict[str, str]:
    """The metadata of a file: text by name."""
    card = target.card
    return {
        **metadata(target),
        **({"caloscale.fixed": target.constants} if target.fixed else {}),
        "caloscale.target": target.name,
        "caloscale.source": source,
        "caloscale.particle": card.particle_text,
        "caloscale.energyRangeGev": "{:g} {:g}".format(*card.energy_gev),
        "caloscale.angleRangeDeg": "{:g} {:g}".format(*card.angle_deg),
        "caloscale.outsideRange": OUTSIDE,
        "caloscale.noise": "from the caller",
        "caloscale.verdict": json.dumps(decided),
    }


def _readme(target: Target, file: str, properties: dict[str, str], trained: Data) -> str:
    verdict = json.loads(properties["caloscale.verdict"])
    fixed = f"- The file has {target.constants}.\n" if target.fixed else ""
    setup = ""
    if trained.front:
        plates = ", ".join(f"{plate.thickness_mm:g} mm of {plate.material}" for plate in trained.front)
        setup += f"- Showers of primaries before plates, which are not to be simulated again: {plates}.\n"
    if trained.pair_distance_mm is not None:
        apart = f"{trained.pair_distance_mm:g} mm apart"
        setup += f"- Showers of two parallel primaries, {apart}, with half of the energy each.\n"
    units = "\n".join(
        f"| `{name.removeprefix('caloscale.units.')}` | {text} |"
        for name, text in properties.items()
        if name.startswith("caloscale.units.")
    )
    return text_of(
        "readme",
        target=target.name,
        file=file,
        version=caloscale.__version__,
        showers=target.card.in_words.capitalize(),
        ranges=ranges(target.card),
        setup=setup,
        decision=verdict["decision"],
        outside=OUTSIDE,
        units=units,
        usage=target.usage(file),
        fixed=fixed,
        checked=PRIMARIES,
    )


def _compare(target: Target, file: Path, generator: Any, count: int, *, blamed: Path) -> tuple[float, float]:
    """Largest deviation of a file from the network, and the median of the calls in milliseconds.

    The call is that of the target: batch 1, one thread, no optimisation of the graph, inputs in their order. Raises
    CheckpointError, which names the path ``blamed``, for more than is allowed.
    """
    primaries, noise = target.primaries(count), target.noise(count)
    call = open_file(file, ("noise", *target.card.columns), threads=1, optimise=False)
    seconds, worst = [], 0.0
    threshold = target.units_per_gev * target.card.preprocessing.threshold_gev
    with bar("check", count, "showers", disable=count < PRIMARIES) as shown:
        for first in range(0, count, _TOGETHER):
            batch = slice(first, first + _TOGETHER)
            normal = target.noise_of_network(noise[batch])
            network = generator.network_cells_gev(normal, *rows(primaries, batch).values()).numpy()
            for number, cells in enumerate(network, start=first):
                given = {name: float(column[number]) for name, column in primaries.items()}
                inputs = target.inputs(noise[number], given)
                started = time.perf_counter()
                output = call(*inputs)
                seconds.append(time.perf_counter() - started)
                ours, truth = target.deposits(output, given["energy_gev"]), target.expected(cells, given)
                worst = float(np.maximum(worst, deviation(ours[None], truth[None], threshold)))  # keeps NaN
                shown.update(1)
    allowed = TOLERANCES[target.format]
    if not worst <= allowed:
        problem = f"differs from the network in the call of {target.name}: by {worst:.1e}, allowed {allowed:g}"
        remedy = "export the model again; if it stays, report it with the versions in export.json"
        raise CheckpointError(problem, file=blamed, remedy=remedy)
    return worst, float(np.median(seconds)) * 1000
