"""The azure-ai-ml SDK: a job checked by its schema, and sent to a workspace."""

import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml

from caloscale.errors import InputError
from caloscale.installation import install_command


@dataclass(frozen=True)
class Workspace:
    """Where a job is sent."""

    subscription: str
    resource_group: str
    name: str


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


def send(job: Mapping[str, Any], workspace: Workspace | None, region: str) -> str:
    """Send a job and return the address of its page in the studio.

    Credentials come from azure-identity's default chain; without ``workspace`` its coordinates come from the SDK's
    config.json (in this folder, one above, or .azureml). Serverless compute runs in the workspace's region: raises
    InputError when that is not the ``region`` of the plan, or when Azure refuses.
    """
    made = checked(job)
    with _sdk():
        from azure.ai.ml import MLClient
        from azure.ai.ml.exceptions import MlException
        from azure.core.exceptions import AzureError, ClientAuthenticationError
        from azure.identity import DefaultAzureCredential

        try:
            client = _client(MLClient, DefaultAzureCredential(), workspace)
            there = client.workspaces.get(client.workspace_name).location
            if "compute" not in job and there.replace(" ", "").lower() != region:
                raise InputError(
                    f"serverless compute runs in the region of the workspace, {there}; the plan is for {region}",
                    field="hardware.region",
                    value=region,
                    remedy=f"--set hardware.region={there}, or another workspace",
                )
            sent = client.jobs.create_or_update(made)
        except ClientAuthenticationError as problem:
            remedy = "az login, or the environment variables of azure-identity (AZURE_CLIENT_ID, ...)"
            raise InputError("no credentials for Azure: " + problem.message.splitlines()[0], remedy=remedy) from problem
        except (MlException, AzureError) as problem:
            remedy = "check --subscription, --resource-group and --azure-workspace, or config.json"
            raise InputError(f"Azure ML refuses: {str(problem).splitlines()[0]}", remedy=remedy) from problem
    return str(sent.studio_url or sent.name)


def _client(client: Any, credential: Any, workspace: Workspace | None) -> Any:
    if workspace is None:
        return client.from_config(credential=credential)
    return client(
        credential=credential,
        subscription_id=workspace.subscription,
        resource_group_name=workspace.resource_group,
        workspace_name=workspace.name,
    )


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
