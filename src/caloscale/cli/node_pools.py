"""caloscale node-pools: the node pools that a run wants, as commands."""

from __future__ import annotations

from typing import Annotated

import typer
import yaml

from caloscale.cli.options import AsOf, Configuration, Measurements, Overrides, Preset, Prices, day_of, resolve


def command(
    configuration: Configuration = None,
    preset: Preset = None,
    overrides: Overrides = None,
    cluster: Annotated[str, typer.Option(help="Name of the GKE cluster.")] = "caloscale",
    location: Annotated[
        str | None, typer.Option(help="Zone or region of the cluster; absent: the region of the plan.")
    ] = None,
    config_connector: Annotated[
        bool, typer.Option("--config-connector", help="Print a manifest for Config Connector instead.")
    ] = False,
    prices: Prices = None,
    measurements: Measurements = None,
    as_of: AsOf = None,
) -> None:
    """Print the gcloud commands that make the node pools of a run: machines, spot taints, placement, network."""
    from caloscale.cluster.capacity.gke_pools import NodePool, connector_manifest, gcloud_command
    from caloscale.errors import InputError
    from caloscale.planning.catalogue.measurements import load_measurements
    from caloscale.planning.catalogue.prices import load_prices
    from caloscale.planning.search.plan import plan

    run = resolve(configuration, preset, overrides, ".")
    made = plan(run, load_prices(prices or ()), load_measurements(measurements or ()), day_of(as_of))
    best = made.chosen
    if best is None:
        raise InputError("nothing was chosen", field="budget", remedy="; ".join(made.notes) or "see caloscale plan")
    if best.cloud != "gcp":
        raise InputError(
            "is planned on another cloud", field="hardware.cloud", value=best.cloud, remedy="--set hardware.cloud=gcp"
        )
    pool = NodePool(
        accelerator=best.accelerator,
        machine_type=best.machine_type,
        per_node=best.count // best.nodes,
        capacity_type=best.capacity_type,
        topology=best.topology,
        max_nodes=best.nodes,
    )
    typer.echo(f"# {best.nodes} nodes, about {best.usd:.2f} USD for the whole run")
    place = {"cluster": cluster, "location": location or best.region}
    if config_connector:
        typer.echo(yaml.safe_dump(connector_manifest(pool, **place), sort_keys=False), nl=False)
    else:
        typer.echo(gcloud_command(pool, **place))
