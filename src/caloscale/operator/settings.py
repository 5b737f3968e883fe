"""Settings of the operator, from the environment of its deployment."""

import os
import socket
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, DirectoryPath, Field, ValidationError

import caloscale
from caloscale.cluster import names
from caloscale.errors import ConfigurationError


def _split(value: object) -> object:
    return value.replace(",", " ").split() if isinstance(value, str) else value


class Settings(BaseModel):
    """Settings of the process, each from an environment variable; an empty variable counts as absent."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, allow_inf_nan=False)

    image: str = Field(caloscale.IMAGE, validation_alias="CALOSCALE_IMAGE")
    """Image of the workers where a run names none."""
    solver_image: str = Field(caloscale.SOLVER_IMAGE, validation_alias="CALOSCALE_SOLVER_IMAGE")
    """Image of launcher and workers of a solver run where it names none."""
    prices: DirectoryPath | None = Field(None, validation_alias="CALOSCALE_PRICES")
    """Folder of price files (*.csv), a ConfigMap, that replace rows of the catalogue; absent: none."""
    labels: DirectoryPath | None = Field(None, validation_alias="CALOSCALE_LABELS")
    """Folder of label maps (*.csv), a ConfigMap, whose rows go before those of the package; absent: none."""
    identity: str = Field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}", validation_alias="POD_NAME")
    """Holder of the Lease: two processes of one name would both lead."""
    namespace: str = Field("default", validation_alias="POD_NAMESPACE")
    """Namespace of the Lease."""
    health_port: int = Field(8080, validation_alias="CALOSCALE_HEALTH_PORT", ge=0, le=65535)
    """/healthz and /readyz; 0: none."""
    metrics_port: int = Field(9090, validation_alias="CALOSCALE_METRICS_PORT", ge=0, le=65535)
    """/metrics; 0: none."""
    namespaces: Annotated[tuple[Annotated[str, Field(pattern=names.NAMESPACE)], ...], BeforeValidator(_split)] = Field(
        (), validation_alias="CALOSCALE_NAMESPACES"
    )
    """Namespaces of the runs, separated by commas; none: all of the cluster."""
    threads: int = Field(16, validation_alias="CALOSCALE_THREADS", ge=1)
    """Concurrent reconciles; most of the time they wait for the API server."""
    debounce_seconds: float = Field(0.5, validation_alias="CALOSCALE_DEBOUNCE_SECONDS", ge=0)
    """Events of a gang within this time are answered by one reconcile, s."""
    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(str.upper)
    ] = Field("INFO", validation_alias="CALOSCALE_LOG")
    """Least level of what is logged."""
    resync_seconds: float = Field(300.0, validation_alias="CALOSCALE_RESYNC_SECONDS", gt=0)
    """A watch lasts so long and is resumed where it ended; a kind is listed again only after errors, and nodes when the
    label maps change. Prices, label maps and whether Kueue is installed are looked up once in this period, s."""


def settings_of(environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of an environment; raises ConfigurationError that names the variable."""
    variables = os.environ if environment is None else environment
    try:
        return Settings.model_validate({name: value for name, value in variables.items() if value})
    except ValidationError as error:
        first = error.errors()[0]
        field, remedy = str(first["loc"][0]), "correct it in the Deployment"
        raise ConfigurationError(first["msg"], field=field, value=first["input"], remedy=remedy) from None
