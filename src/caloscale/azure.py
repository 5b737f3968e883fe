"""A planned run as an Azure ML command job: a mapping by the job's YAML schema, checked and sent by azure-ai-ml."""

import io
import logging
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import yaml

from caloscale.errors import ConfigurationError, InputError
from caloscale.installation import install_command
from caloscale.planning.search.plan import Candidate
from caloscale.spec import Hardware, Run

SCHEMA = "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json"
CONFIGURATION_VARIABLE = "CALOSCALE_RUN"
"""Environment variable that carries the run configuration to the workers."""
COMMAND = (
    f"printenv {CONFIGURATION_VARIABLE} > run.yaml && "
    "caloscale train run.yaml --workspace ${{outputs.run}} --dataset ${{inputs.dataset}}"
)
TIERS = {"spot": "spot", "on-demand": "standard"}
"""Job tier of serverless compute for each capacity type; spot is what clusters call low priority."""
DATA_SCHEMES = ("azureml:", "https://", "abfss://", "wasbs://")


def on_azure(run: Run) -> Run:
    """The run with its hardware on Azure; raises ConfigurationError when it names another cloud."""
    hardware = run.hardware or Hardware()
    if hardware.cloud not in (None, "azure"):
        problem = "is not the cloud that the run is submitted to"
        remedy = "--set hardware.cloud=azure, or leave it out"
        raise ConfigurationError(problem, field="hardware.cloud", value=hardware.cloud, remedy=remedy)
    if hardware.topology is not None:
        problem = "belongs to TPU slices, which Azure has not"
        raise ConfigurationError(problem, field="hardware.topology", value=hardware.topology, remedy="leave it out")
    return run.model_copy(update={"hardware": hardware.model_copy(update={"cloud": "azure"})})


def job_of(run: Run, placement: Candidate, *, image: str, data: str, compute: str | None = None) -> dict[str, Any]:
    """The command job of a planned run: one worker a node, TF_CONFIG from Azure ML's TensorFlow distribution.

    ``data``: folder of shards (`caloscale preprocess`) as Azure ML names it; it is mounted. ``compute``: an existing
    cluster, whose own size and tier then count; absent: serverless compute of the placement's machine size.
    Raises InputError naming field, value and remedy.
    """
    if placement.workers != placement.nodes:
        problem = f"has {placement.workers} workers on {placement.nodes} nodes; an Azure ML job has one a node"
        remedy = "leave hardware.workers out, with placement: Aligned"
        raise ConfigurationError(problem, field="hardware.workers", value=placement.workers, remedy=remedy)
    _check(data, image)
    # the hardware that was chosen, so that what runs is what was planned
    planned = ("accelerator", "machine_type", "count", "nodes", "workers", "accelerators_per_worker", "region")
    chosen = placement.values_of(*planned, "capacity_type")
    chosen |= {"cloud": "azure", "per_node": placement.accelerators_per_worker}
    placed = run.model_copy(update={"hardware": (run.hardware or Hardware()).model_copy(update=chosen)})
    job: dict[str, Any] = {
        "$schema": SCHEMA,
        "type": "command",
        "display_name": f"{run.model.network} on {placement.count} x {placement.accelerator}",
        "experiment_name": "caloscale",
        "description": f"caloscale train: {run.train.epochs} epochs, {placement.workers} workers x "
        f"{placement.accelerators_per_worker} GPUs; estimate {placement.usd:.2f} USD, "
        f"{placement.total_seconds / 3600:.2f} h",
        "tags": {
            "caloscale.accelerator": placement.accelerator,
            "caloscale.region": placement.region,
            "caloscale.capacityType": placement.capacity_type,
            "caloscale.estimateUsd": f"{placement.usd:.2f}",
        },
        "command": COMMAND,
        "environment": {"image": image},
        "environment_variables": {CONFIGURATION_VARIABLE: placed.model_dump_json(by_alias=True)},
        "inputs": {"dataset": {"type": "uri_folder", "path": data, "mode": "ro_mount"}},
        "outputs": {"run": {"type": "uri_folder", "mode": "rw_mount"}},
        "distribution": {"type": "tensorflow", "worker_count": placement.nodes, "parameter_server_count": 0},
        "resources": {"instance_count": placement.nodes},
    }
    if compute is not None:
        job["compute"] = f"azureml:{compute.removeprefix('azureml:')}"
    else:
        job["resources"]["instance_type"] = f"Standard_{placement.machine_type}"  # the catalogue leaves this out
        job["queue_settings"] = {"job_tier": TIERS[placement.capacity_type]}
    if run.budget.deadline_seconds is not None:
        job["limits"] = {"timeout": math.ceil(run.budget.deadline_seconds)}
    return job


def _check(data: str, image: str) -> None:
    if not data.startswith(DATA_SCHEMES):
        remedy = "azureml:NAME:VERSION, azureml://datastores/NAME/paths/FOLDER, or an https:// or abfss:// address"
        raise InputError("is not a path that Azure ML can mount", field="--data", value=data, remedy=remedy)
    if re.search(r"[?&](sig|sv|se)=|//[^/]*:[^/]*@", data):
        remedy = "make a datastore for it and name that: credentials stay in the workspace"
        raise InputError("carries a token or password in its address", field="--data", remedy=remedy)
    if not re.fullmatch(r"[a-z0-9][\w.\-/:]*(:[\w.\-]+|@sha256:[0-9a-f]{64})?", image):
        remedy = "such as registry.example/trainer:1.0"
        raise InputError("is not the name of an image", field="--image", value=image, remedy=remedy)


def to_yaml(job: Mapping[str, Any]) -> str:
    """A job as the file that `az ml job create --file` takes."""
    return yaml.safe_dump(dict(job), sort_keys=False, allow_unicode=True, width=120)


def checked(job: Mapping[str, Any]) -> Any:
    """The job as the SDK's own object; its schema has looked at every field.

    Raises InputError when the SDK refuses it, or is not installed.
    """
    with _sdk():
        from azure.ai.ml import load_job
        from marshmallow.exceptions import ValidationError

        try:
            return load_job(io.StringIO(to_yaml(job)))
        except ValidationError as problem:
            remedy = "check --data and --compute"
            raise InputError(f"is refused by the schema of Azure ML: {problem}", file="job", remedy=remedy) from problem


def send(job: Mapping[str, Any], workspace: tuple[str, str, str] | None, region: str) -> str:
    """Send a job and return the address of its page in the studio.

    workspace: subscription, resource group and name; None: those of the SDK's config.json (in this folder, one above,
    or .azureml). Credentials come from azure-identity's default chain. Serverless compute runs in the workspace's
    region: raises InputError when that is not the ``region`` of the plan, or when Azure refuses.
    """
    command_job = checked(job)
    with _sdk():
        from azure.ai.ml import MLClient
        from azure.ai.ml.exceptions import MlException
        from azure.core.exceptions import AzureError, ClientAuthenticationError
        from azure.identity import DefaultAzureCredential

        try:
            credential = DefaultAzureCredential()
            client = MLClient(credential, *workspace) if workspace else MLClient.from_config(credential)
            there = client.workspaces.get(client.workspace_name).location
            if "compute" not in job and there.replace(" ", "").lower() != region:
                problem = f"serverless compute runs in the region of the workspace, {there}; the plan is for {region}"
                remedy = f"--set hardware.region={there}, or another workspace"
                raise InputError(problem, field="hardware.region", value=region, remedy=remedy)
            sent = client.jobs.create_or_update(command_job)
        except ClientAuthenticationError as problem:
            remedy = "az login, or the environment variables of azure-identity (AZURE_CLIENT_ID, ...)"
            raise InputError("no credentials for Azure: " + problem.message.splitlines()[0], remedy=remedy) from problem
        except (MlException, AzureError) as problem:
            remedy = "check --subscription, --resource-group and --azure-workspace, or config.json"
            raise InputError(f"Azure ML refuses: {str(problem).splitlines()[0]}", remedy=remedy) from problem
    return str(sent.studio_url or sent.name)


@contextmanager
def _sdk() -> Iterator[None]:
    """The SDK without its notices (it calls half of itself experimental); InputError where it is not installed."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                yield
            except ModuleNotFoundError as missing:
                if (missing.name or "").split(".")[0] not in ("azure", "marshmallow"):
                    raise
                raise InputError("azure-ai-ml is not installed", remedy=install_command("azure")) from missing
    finally:
        logging.disable(disabled)
