"""Price lists in the formats of the clouds: small files of a few real entries."""

import datetime as dt
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from caloscale.errors import PriceError
from caloscale.planning.catalogue.price_exports import import_prices

SEEN = dt.date(2026, 11, 20)


def sku(text: str, usage: str, usd: float, *, unit: str = "h", regions: tuple[str, ...] = ("us-central1",)) -> Any:
    """An entry of services.skus.list."""
    price = {"currencyCode": "USD", "units": str(int(usd)), "nanos": round((usd - int(usd)) * 1e9)}
    expression = {"usageUnit": unit, "displayQuantity": 1, "tieredRates": [{"startUsageAmount": 0, "unitPrice": price}]}
    return {
        "name": "services/6F81-5844-456A/skus/0000-1111-2222",
        "skuId": "0000-1111-2222",
        "description": text,
        "category": {"serviceDisplayName": "Compute Engine", "resourceFamily": "Compute", "usageType": usage},
        "serviceRegions": list(regions),
        "pricingInfo": [{"pricingExpression": expression, "effectiveTime": "2026-11-01T07:00:00.133Z"}],
        "serviceProviderName": "Google",
    }


GOOGLE = [
    sku("Nvidia Tesla V100 GPU running in Americas", "OnDemand", 2.48, regions=("us-central1", "us-east1")),
    sku("Nvidia Tesla V100 GPU attached to Spot Preemptible VMs running in Americas", "Preemptible", 0.992),
    sku("Nvidia Tesla A100 GPU running in Americas", "OnDemand", 2.93391),
    sku("Nvidia Tesla A100 80GB GPU running in Americas", "OnDemand", 3.92808),
    sku("Commitment v1: Nvidia Tesla V100 GPU running in Americas for 1 Year", "Commit1Yr", 1.562),
    sku("N1 Predefined Instance Core running in Americas", "OnDemand", 0.031611),
    sku("Spot Preemptible N1 Predefined Instance Ram running in Americas", "Preemptible", 0.000892, unit="GiBy.h"),
    sku("A2 Instance Core running in Americas", "OnDemand", 0.031611),
    sku("A2 Instance Ram running in Americas", "OnDemand", 0.004237, unit="GiBy.h"),
    sku("G2 Instance Core running in Americas", "OnDemand", 0.02498844),
    sku("G2 Instance Ram running in Americas", "OnDemand", 0.00292353, unit="GiBy.h"),
    sku("TpuV6e running in Columbus", "OnDemand", 2.70, regions=("us-east5",)),
    sku("TpuV6e attached to Spot Preemptible VMs running in Columbus", "Preemptible", 1.4033, regions=("us-east5",)),
    sku("Capacity Optimized TpuV6e running in Columbus", "OnDemand", 2.71, regions=("us-east5",)),
    sku("N2 Custom Instance Core running in Americas", "OnDemand", 0.033174),
    sku("Spot Preemptible A4 Nvidia B200 (1 gpu slice) running in Americas", "OnDemand", 4.9542),
]


def item(size: str, sold: str, usd: float, **other: Any) -> Any:
    """An entry of the Retail Prices API."""
    return {
        "currencyCode": "USD",
        "tierMinimumUnits": 0.0,
        "retailPrice": usd,
        "unitPrice": usd,
        "armRegionName": "eastus",
        "effectiveStartDate": "2026-08-01T00:00:00Z",
        "meterId": "aaaa-bbbb",
        "meterName": sold,
        "skuName": sold,
        "productName": "Virtual Machines NDrv2 Series",
        "serviceName": "Virtual Machines",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        "armSkuName": f"Standard_{size}",
    } | other


AZURE = [
    item("ND40rs_v2", "ND40rs v2", 22.032),
    item("ND40rs_v2", "ND40rs v2 Spot", 3.9658),
    item("ND40rs_v2", "ND40rs v2 Low Priority", 4.406),
    item("ND40rs_v2", "ND40rs v2", 23.9, productName="Virtual Machines NDrv2 Series Windows"),
    item("ND40rs_v2", "ND40rs v2", 123038.0, type="Reservation", reservationTerm="1 Year"),
    item("D2s_v3", "D2s v3", 0.096),
]


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., Path]:
    """A file with these pages, written on a day."""

    def write(*pages: Any, day: dt.date = SEEN, name: str = "list.json") -> Path:
        path = tmp_path / name
        path.write_text(json.dumps(pages[0] if len(pages) == 1 else pages))
        noon = dt.datetime.combine(day, dt.time(12), dt.UTC).timestamp()
        os.utime(path, (noon, noon))
        return path

    return write


def prices(imported) -> dict[tuple[str, str, str, str], float]:
    return {(r.region, r.sku_kind, r.sku, r.capacity_type): r.usd_per_unit_hour for r in imported.rows}


def test_googles_list(export) -> None:
    imported = import_prices(
        [export({"skus": GOOGLE[:6], "nextPageToken": "b"}, {"skus": GOOGLE[6:], "nextPageToken": ""})]
    )
    found = prices(imported)
    america = "us-central1"
    v100, v6e = ("gpu", "nvidia-tesla-v100"), ("tpu_chip", "v6e")
    assert {
        (america, *v100, "on-demand"): 2.48,
        ("us-east1", *v100, "on-demand"): 2.48,
        (america, *v100, "spot"): 0.992,
        (america, "gpu", "nvidia-tesla-a100", "on-demand"): 2.93391,
        (america, "gpu", "nvidia-a100-80gb", "on-demand"): 3.92808,
        (america, "vcpu", "n1", "on-demand"): 0.031611,
        (america, "mem_gib", "n1", "spot"): 0.000892,
        ("us-east5", *v6e, "on-demand"): 2.70,
        ("us-east5", *v6e, "spot"): 1.4033,
    }.items() <= found.items()
    # 12 vCPU and 85 GiB; 4 vCPU and 16 GiB: what Google lists as the hosts of a2-highgpu-1g and g2-standard-4
    assert found[america, "vm", "a2-highgpu-1g", "on-demand"] == pytest.approx(12 * 0.031611 + 85 * 0.004237, abs=1e-8)
    g2_usd = 4 * 0.02498844 + 16 * 0.00292353
    assert found[america, "vm", "g2-standard-4", "on-demand"] == pytest.approx(g2_usd, abs=1e-8)
    assert {(row.observed_on, str(row.effective_from)) for row in imported.rows} == {(SEEN, "2026-11-01")}
    assert imported.left_out == {"bought by Commit1Yr": 1, "not in the catalogue": 3} and not imported.continues
    assert {r.confidence for r in imported.rows if r.sku_kind == "vm"} == {"derived"}


def test_pages_are_complete_in_any_order(export) -> None:
    """As a shell sorts them: page 10 before page 2."""
    first, last = {"skus": GOOGLE[:6], "nextPageToken": "b"}, {"skus": GOOGLE[6:], "nextPageToken": ""}
    files = [export(last, name="skus-10.json"), export(first, name="skus-2.json")]
    assert not import_prices(files).continues and import_prices(files[1:]).continues
    of_both = [*files, export({"Items": AZURE, "NextPageLink": "https://next"}, name="azure.json")]
    assert import_prices(of_both).continues


def test_azures_list(export) -> None:
    imported = import_prices([export({"Items": AZURE, "NextPageLink": "https://next"})], dt.date(2026, 11, 24))
    assert prices(imported) == {
        ("eastus", "vm", "ND40rs_v2", "on-demand"): 22.032,
        ("eastus", "vm", "ND40rs_v2", "spot"): 3.9658,
    }
    assert {row.observed_on for row in imported.rows} == {dt.date(2026, 11, 24)} and imported.continues
    assert all(row.includes_host for row in imported.rows) and sum(imported.left_out.values()) == 4


def test_a_price_holds_until_the_next_begins_and_a_contradiction_is_refused(export) -> None:
    """The later one may be announced: the other is that of today."""
    later = item("ND40rs_v2", "ND40rs v2", 30.0, effectiveStartDate="2027-06-01T00:00:00Z")
    rows = import_prices([export({"Items": [later, AZURE[0], AZURE[0]]})]).rows
    periods = [(row.usd_per_unit_hour, str(row.effective_from), str(row.effective_to)) for row in rows]
    assert periods == [(22.032, "2026-08-01", "2027-05-31"), (30.0, "2027-06-01", "None")]
    with pytest.raises(PriceError, match="two prices of ND40rs_v2 in eastus, on-demand"):
        import_prices([export({"Items": [AZURE[0], item("ND40rs_v2", "ND40rs v2", 21.0)]})])


def test_entries_without_a_price_are_counted_beside_the_others(export) -> None:
    free = item("ND96asr_v4", "ND96asr v4 Spot", 0.0)
    imported = import_prices([export({"Items": [AZURE[0], free]})])
    assert len(imported.rows) == 1 and imported.left_out == {"without a price": 1}
    none = GOOGLE[0] | {"pricingInfo": []}
    imported = import_prices([export({"skus": [GOOGLE[2], sku(GOOGLE[0]["description"], "OnDemand", 0.0), none]})])
    assert len(imported.rows) == 1 and imported.left_out == {"without a price": 2}


def test_a_host_costs_what_its_cores_and_memory_cost_in_each_period(export) -> None:
    """4 cores and 16 GiB (g2-standard-4): the cores cost 0.02 and from 2027-01-01 on 0.03, the memory 0.003 USD/h."""
    core = sku("G2 Instance Core running in Americas", "OnDemand", 0.02)
    (announced,) = sku("", "OnDemand", 0.03)["pricingInfo"]
    (hour,) = sku("", "OnDemand", 0.04)["pricingInfo"]
    core["pricingInfo"].append(announced | {"effectiveTime": "2027-01-01T08:00:00Z"})
    core["pricingInfo"].append(hour | {"effectiveTime": "2027-01-01T07:00:00Z"})  # for an hour
    memory = sku("G2 Instance Ram running in Americas", "OnDemand", 0.003, unit="GiBy.h")
    rows = [row for row in import_prices([export({"skus": [core, memory]})]).rows if row.sku == "g2-standard-4"]
    assert [row.usd_per_unit_hour for row in rows] == pytest.approx([0.128, 0.168], abs=1e-9)
    periods = [(str(row.effective_from), str(row.effective_to)) for row in rows]
    assert periods == [("2026-11-01", "2026-12-31"), ("2027-01-01", "None")]


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ({"skus": []}, "no price of a machine in the catalogue"),
        ({"services": []}, "no price list of Google or Azure"),
        ([], "no price of a machine"),
        ({"skus": ["text"]}, "not as the cloud documents it: TypeError"),
        ({"skus": [{"description": "Nvidia"}]}, "not as the cloud documents it: KeyError 'category'"),
        ({"Items": [item("ND40rs_v2", "ND40rs v2", 22.0, currencyCode="EUR")]}, r"another currency \(got 'EUR'\)"),
        ({"Items": [item("ND40rs_v2", "ND40rs v2", 0.0)]}, "no price of a machine"),
        ({"Items": [item("ND40rs_v2", "ND40rs v2", -1.0)]}, "greater than 0"),
    ],
)
def test_what_is_no_list_is_refused(page, message, export) -> None:
    with pytest.raises(PriceError, match=message):
        import_prices([export(page)])
    with pytest.raises(PriceError, match="cannot be read"):
        import_prices([export(page).with_name("absent.json")])


def test_an_on_demand_price_below_the_spot_price_of_the_catalogue_names_the_list(export, command, tmp_path) -> None:
    """It is 1.0885 USD; with the spot price of the same list it is none of a contradiction."""
    cheap, spot = sku(GOOGLE[0]["description"], "OnDemand", 1.0), sku(GOOGLE[1]["description"], "Preemptible", 0.9)
    done = command("prices", "import", export({"skus": [cheap]}), "-o", tmp_path / "google.csv")
    assert done.code == 2 and "not above spot (1.0885)" in done.err and not (tmp_path / "google.csv").exists()
    assert f"{tmp_path / 'list.json'}, Cloud Billing Catalog, SKU 0000-1111-2222" in done.err
    both = command("prices", "import", export({"skus": [cheap, spot]}), "-o", tmp_path / "google.csv")
    assert both.code == 0 and command("prices", "--prices", tmp_path / "google.csv").code == 0


def test_a_list_of_the_future_is_refused_with_the_option(export) -> None:
    day = dt.date.today() + dt.timedelta(days=3)
    for file, seen in ((export({"Items": AZURE}, day=day), None), (export({"Items": AZURE}, name="b.json"), day)):
        with pytest.raises(PriceError, match="in the future") as refused:
            import_prices([file], seen)
        assert refused.value.field == "--seen" and refused.value.value == str(day)


def test_a_plan_uses_imported_prices(export, command, tmp_path: Path) -> None:
    """And is warned of no age; the host keeps the price of the catalogue."""
    made = command("prices", "import", export({"skus": GOOGLE}), "-o", tmp_path / "google.csv")
    assert made.code == 0 and "seen on 2026-11-20" in made.out and "left out, not in the catalogue: 3" in made.out
    options = ("plan", "--preset", "variable-angle", "--set", "hardware.accelerator=nvidia-tesla-v100", "--json")
    options += ("--set", "hardware.region=us-central1", "--as-of", "2026-11-25", "--prices", tmp_path / "google.csv")
    used = json.loads(command(*options).out)["prices"]
    parts = {part["sku"] + part["kind"]: (part["usdPerUnitHour"], part["observedOn"]) for part in used["parts"]}
    assert parts["nvidia-tesla-v100gpu"] == (0.992, "2026-11-20") and parts["n1mem_gib"] == (0.000892, "2026-11-20")
    assert len(used["warnings"]) == 1 and "spot price of n1" in used["warnings"][0]  # the vCPU, of the catalogue
