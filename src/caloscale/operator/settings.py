"""Settings of the operator, from its deployment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import caloscale


@dataclass(frozen=True)
class Settings:
    """Settings of the process, each from an environment variable."""

    image: str = caloscale.IMAGE
    """CALOSCALE_IMAGE: image of the workers where a run names none."""
    prices: Path | None = None
    """CALOSCALE_PRICES: folder of price files (*.csv) that go before the catalogue, a ConfigMap; absent: none."""
    identity: str = "operator"
    """POD_NAME: who holds the lease."""
    namespace: str = "default"
    """POD_NAMESPACE: where the lease is."""
    health_port: int = 8080
    """CALOSCALE_HEALTH_PORT: /healthz and /readyz; 0: none."""
    metrics_port: int = 9090
    """CALOSCALE_METRICS_PORT: /metrics; 0: none."""
    namespaces: tuple[str, ...] = ()
    """CALOSCALE_NAMESPACES: namespaces of the runs, separated by commas; none: all of the cluster."""
    threads: int = 16
    """CALOSCALE_THREADS: reconciles at once; they wait for the API server most of the time."""
    debounce_seconds: float = 0.2
    """CALOSCALE_DEBOUNCE_SECONDS: a gang's events come together and are answered together, s."""
    resync_seconds: float = 300.0
    """CALOSCALE_RESYNC_SECONDS: everything is listed anew so often, in case an event was missed, s."""


def settings_of(environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of an environment."""
    given = os.environ if environment is None else environment
    usual = Settings()
    prices = given.get("CALOSCALE_PRICES")
    return Settings(
        image=given.get("CALOSCALE_IMAGE", usual.image),
        prices=Path(prices) if prices else None,
        identity=given.get("POD_NAME", usual.identity),
        namespace=given.get("POD_NAMESPACE", usual.namespace),
        health_port=int(given.get("CALOSCALE_HEALTH_PORT", usual.health_port)),
        metrics_port=int(given.get("CALOSCALE_METRICS_PORT", usual.metrics_port)),
        namespaces=tuple(filter(None, given.get("CALOSCALE_NAMESPACES", "").replace(" ", "").split(","))),
        threads=int(given.get("CALOSCALE_THREADS", usual.threads)),
        debounce_seconds=float(given.get("CALOSCALE_DEBOUNCE_SECONDS", usual.debounce_seconds)),
        resync_seconds=float(given.get("CALOSCALE_RESYNC_SECONDS", usual.resync_seconds)),
    )
