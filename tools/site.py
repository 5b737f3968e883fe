"""Pages of the site that follow from the code, made while mkdocs builds it: configuration, commands, errors, results.

A hook of mkdocs (see mkdocs.yml); nothing that it makes is kept in the repository.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, cast

import click
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from prometheus_client import Metric
from typer.cli import get_docs_for_click

from caloscale import errors
from caloscale.cli.main import app, main
from caloscale.operator.metrics import Metrics, RunsCollector
from caloscale.operator.store import Store
from caloscale.planning.billing.usage import RunUse
from caloscale.spec import Run, SolverRun
from caloscale.stages.solving import SolverSummary
from caloscale.stages.summary import Summary
from caloscale.status import RunStatus
from tools import table
from tools.custom_resource import COLUMNS, custom_resource_definition

DOCS = Path(__file__).resolve().parents[1] / "docs"
FIELDS = ("key", "type", "default", "meaning, unit and reason")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for path, page in PAGES.items():
        files.append(File.generated(config, path, content=page()))
    for notebook in sorted(DOCS.glob("tutorials/*.ipynb")):
        page_path = notebook.relative_to(DOCS).with_suffix(".md").as_posix()
        files.append(File.generated(config, page_path, content=notebook_page(notebook)))
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        text = (DOCS.parent / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name.lower(), content=text))
    return files


def notebook_page(path: Path) -> str:
    """A notebook with its results as Markdown."""
    parts = []
    for part in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(part["source"])
        parts.append(source if part["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for data in (output["data"] for output in part.get("outputs", ()) if "data" in output):
            if "image/png" in data:
                encoded = "".join(data["image/png"]).replace("\n", "")
                parts.append(f'<img alt="The plot of this cell" src="data:image/png;base64,{encoded}">')
            elif "text/html" in data:
                parts.append(f"<div>{''.join(data['text/html'])}</div>")
            else:
                parts.append(f"```text\n{''.join(data['text/plain'])}\n```")
    return "\n\n".join([*parts, f"[This page as a notebook]({path.name})."])


def cell(text: str) -> str:
    """Text on one line, as a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def type_of(schema: dict[str, Any]) -> str:
    """The type of a field in words."""
    if "enum" in schema:
        return " \\| ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "$ref" in schema:
        return f"[{(name := schema['$ref'].rpartition('/')[2])}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(type_of(one) for one in schema["anyOf"] if one.get("type") != "null")
    if schema.get("type") == "array":
        inner = schema.get("items") or schema.get("prefixItems", [{}])[0]
        return f"list of {type_of(inner)}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map to {type_of(schema['additionalProperties'])}"
    return str(schema.get("type", "any"))


def default_of(schema: dict[str, Any], required: bool) -> str:
    """The default of a field; that of a block is the defaults of its fields."""
    if required or "default" not in schema:
        return "required" if required else ""
    value = schema["default"]
    if "$ref" in schema or isinstance(value, dict):
        return ""
    return "absent" if value is None else f"`{json.dumps(value)}`"


def rows_of(block: dict[str, Any], *, defaults: bool) -> Iterator[tuple[str, ...]]:
    """The fields of a block."""
    required = block.get("required", ())
    for name, field in block.get("properties", {}).items():
        default = (default_of(field, name in required),) if defaults else ()
        yield (f"`{name}`", type_of(field), *default, cell(field.get("description", "")))


def blocks_page(title: str, text: str, kind: Any, *, defaults: bool) -> str:
    """A pydantic model as tables, one for each block, in the order in which they are met."""
    schema = kind.model_json_schema(by_alias=True, mode="validation" if defaults else "serialization")
    columns = FIELDS if defaults else (FIELDS[0], FIELDS[1], FIELDS[3])
    parts = [f"# {title}", text, table(columns, rows_of(schema, defaults=defaults))]
    for name, block in in_order(schema):
        has_fields = "properties" in block
        body = table(columns, rows_of(block, defaults=defaults)) if has_fields else type_of(block)
        parts += [f"## {name}", cell(block.get("description", "")), body]
    return "\n\n".join(parts)


def in_order(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Name and schema of each block, outer ones first, in the order of the fields."""
    blocks = schema.get("$defs", {})
    found: dict[str, dict[str, Any]] = {}
    waiting = [schema]
    while waiting:
        for name in re.findall(r'"#/\$defs/(\w+)"', json.dumps(waiting.pop(0).get("properties", {}))):
            if name not in found:
                found[name] = blocks[name]
                waiting.append(blocks[name])
    return list(found.items())


def configuration() -> str:
    """Every key of the run configuration."""
    text = (
        "A run is one YAML file. A preset gives the values that differ from the defaults of this page; the file "
        "overrides the preset, and `--set data.seed=2` overrides the file. An unknown key is an error. The "
        "[JSON schema](../schema/run.schema.json) serves editors. A [run of the solver](solver-configuration.md) has "
        "other blocks."
    )
    return blocks_page("Run configuration", text, Run, defaults=True)


def solver_configuration() -> str:
    """Every key of a run of the solver."""
    text = "`caloscale solve` takes a run configuration with a `solver` block."
    return blocks_page("Run configuration of the solver", text, SolverRun, defaults=True)


def commands() -> str:
    """Every command with arguments and options, as in its --help."""
    group = typer.main.get_group(app)
    context: Any = click.Context(cast(click.Command, group), info_name="caloscale")
    text = get_docs_for_click(obj=group, ctx=context, name="caloscale")
    text = re.sub(r"(`[^`]*`)|<", lambda found: found[1] or "&lt;", text.partition("**Commands**")[2])
    return f"# Commands\n\n`caloscale COMMAND --help` prints the text of this page.\n\n**Commands**{text}"


def exit_codes() -> str:
    """Exit codes and error classes."""
    listed = " ".join((main.__doc__ or "").partition("Exit codes:")[2].split())
    codes = re.findall(r"(\d+) ([^,:;]+)[,:;]", f"{listed};")
    rows = []
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.CaloscaleError) and kind is not errors.CaloscaleError:
            text = kind.__doc__ or ""
            meaning, remedy = cell(text.split("\n\n")[0]), cell(text.partition("Remedy: ")[2])
            rows.append((f"`{kind.__name__}`", str(kind.exit_code), meaning, remedy))
    return "\n\n".join(
        [
            "# Errors and exit codes",
            "An error prints file, field, problem and value, and on a line of its own the remedy. There is no "
            "traceback; a traceback is a defect of caloscale. Nothing half-written is left. After an exit code of 128 "
            "or more the same command resumes.",
            "## Exit codes",
            table(("code", "meaning"), ((code, text.strip()) for code, text in codes)),
            "`caloscale study` ends with the exit code of the first point that failed. Kubeflow starts a worker again "
            "after a code of 128 or more ([Recovery](../recovery.md#what-is-lost)).",
            "## Error classes",
            "All derive from `caloscale.errors.CaloscaleError`, whose attributes are `problem`, `file`, `field`, "
            "`value`, `remedy` and `exit_code`. The remedy that an error prints is specific to the case; the table "
            "has the usual one.",
            table(("class", "exit code", "meaning", "usual remedy"), rows),
        ]
    )


def custom_resource() -> str:
    """The custom resource TrainingRun."""
    definition = custom_resource_definition()["spec"]
    names = definition["names"]
    text = (
        f"`{names['kind']}`, group `{definition['group']}`, version `{definition['versions'][0]['name']}`, short name "
        f"`{names['shortNames'][0]}`. Its `spec` is the [run configuration](configuration.md). The operator writes "
        "`status`, whose fields follow. `kubectl explain trun.spec` prints the same descriptions."
    )
    rows = ((name, f"`{path}`", cell(meaning)) for name, _, path, meaning, _ in COLUMNS)
    columns = table(("column of kubectl get", "field", "meaning"), rows)
    return blocks_page("Custom resource", f"{text}\n\n{columns}\n\n## status", RunStatus, defaults=False)


def results() -> str:
    """summary.json and bill.json, of both workloads."""
    text = (
        "A run leaves `summary.json`; the fields follow, each block in a section of its own. The [JSON schema]"
        "(../schema/summary.schema.json) is kept with the pages. `bill.json` is the block [Bill](#bill) alone, or "
        '`{"noPrice": "..."}` with the reason where a price is missing. `caloscale solve` leaves the same files; '
        "its `summary.json` has the fields of [SolverSummary](#solversummary) ([JSON schema]"
        "(../schema/solver-summary.schema.json))."
    )
    solver = blocks_page("SolverSummary", cell(SolverSummary.__doc__ or ""), SolverSummary, defaults=False)
    use = blocks_page("RunUse", f"{cell(RunUse.__doc__ or '')} This is the file `usage.json`.", RunUse, defaults=True)
    return f"{blocks_page('Results of a run', text, Summary, defaults=False)}\n\n#{solver}\n\n#{use}"


def metrics() -> str:
    """Metrics and events of the operator."""
    metrics = Metrics()
    metrics.count("GET", "pods", 200)  # a counter without samples shows no labels
    metrics.events.labels("Pod")
    found = (*metrics.registry.collect(), *RunsCollector(Store(), lambda: True).collect())
    lines = resources.files("caloscale.operator").joinpath("events.csv").read_text(encoding="utf-8").splitlines()
    events = ((f"`{row['reason']}`", row["type"], cell(row["meaning"])) for row in csv.DictReader(lines))
    return "\n\n".join(
        [
            "# Metrics and events of the operator",
            "## Metrics",
            "The operator serves these to Prometheus under `/metrics` of its port 9090 (`CALOSCALE_METRICS_PORT`).",
            table(("metric", "type", "labels", "meaning"), map(_metric_row, found)),
            "## Events",
            "The operator writes events of Kubernetes (`kubectl events --for trainingrun/NAME`) where a run departs "
            "from its normal course. A run that goes well has none of its own: its phase, its conditions and "
            "`status.attempts` state that it was launched, runs and succeeded. A warning about a worker that does "
            "not start has the reason that Kubernetes gives, such as `ImagePullBackOff`.",
            table(("reason", "type", "meaning"), events),
        ]
    )


def _metric_row(metric: Metric) -> tuple[str, ...]:
    """Name as it is served, type, labels, meaning."""
    labels: dict[str, dict[str, None]] = {}
    for sample in metric.samples:
        for name, value in sample.labels.items():
            labels.setdefault(name, {})[value] = None
    labels.pop("le", None)
    shown = (
        f"`{name}`: {', '.join(values)}" if metric.type == "gauge" else f"`{name}`" for name, values in labels.items()
    )
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    return f"`{name}`", metric.type, "; ".join(shown), cell(metric.documentation)


PAGES: dict[str, Callable[[], str]] = {
    "reference/configuration.md": configuration,
    "reference/solver-configuration.md": solver_configuration,
    "reference/commands.md": commands,
    "reference/errors.md": exit_codes,
    "reference/custom-resource.md": custom_resource,
    "reference/results.md": results,
    "reference/metrics.md": metrics,
}
