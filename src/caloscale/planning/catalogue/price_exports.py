"""Price lists as clouds export them, as rows of the catalogue.

Google: the answer of ``services.skus.list`` for Compute Engine (``skus``). Azure: that of the Retail Prices API
(``Items``). Only what the catalogue knows is taken, bought on demand or as spot, in US dollars.
"""

import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from caloscale.errors import PriceError
from caloscale.planning.catalogue.hardware import load_machines
from caloscale.planning.catalogue.prices import CATALOGUE, UNITS, Key, Kind, PriceRow, Prices
from caloscale.planning.catalogue.rows import read_rows, tomorrow

_GPUS = {
    "Nvidia Tesla P100": "nvidia-tesla-p100",
    "Nvidia Tesla V100": "nvidia-tesla-v100",
    "Nvidia Tesla T4": "nvidia-tesla-t4",
    "Nvidia L4": "nvidia-l4",
    "Nvidia Tesla A100": "nvidia-tesla-a100",
    "Nvidia Tesla A100 80GB": "nvidia-a100-80gb",
    "Nvidia H100 80GB": "nvidia-h100-80gb",
}
_WHERE = r"(?P<spot> attached to Spot Preemptible VMs)? running in "
_GPU = re.compile(rf"(?P<name>{'|'.join(_GPUS)}) GPU{_WHERE}")
_TPU = re.compile(rf"Tpu(?P<name>V4|V5e|V5p|V6e){_WHERE}")
_HOST = re.compile(
    r"(?P<spot>(Spot )?Preemptible )?(?P<family>N1 Predefined|A2|G2) Instance (?P<part>Core|Ram) running in "
)
_HOSTS = {"A2": ("a2-highgpu-1g", "a2-megagpu-16g"), "G2": ("g2-standard-4",)}
"""Hosts whose price is that of their cores and memory; those with a disk in the price (a2-ultragpu, a3) are not."""


@dataclass
class Imported:
    """Rows, and the number of entries that were left out, by reason."""

    rows: list[PriceRow] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    continues: bool = False
    """Whether a cloud's pages all name a page that follows: the last one is not there, whatever their order."""


def import_prices(files: Sequence[Path], observed_on: dt.date | None = None) -> Imported:
    """The rows of exported price lists, which may be pages of one list.

    observed_on: day on which they were fetched; None: the day on which each file was written last. Raises PriceError
    for a file that is no such list, for another currency, where nothing is known, and for a price on demand that is not
    above the spot price of the catalogue.
    """
    imported, named = Imported(), ", ".join(map(str, files))
    continued: dict[str, bool] = {}
    for file in files:
        pages = list(_pages(file))
        day = observed_on or dt.datetime.fromtimestamp(file.stat().st_mtime, dt.UTC).date()
        if day > tomorrow():
            problem = "says that a price was seen in the future" if observed_on else "was written in the future"
            remedy = f"give the day of the export: --seen {dt.date.today()}"
            raise PriceError(problem, file=file, field="--seen", value=str(day), remedy=remedy)
        for kind, page in pages:
            follows = page.get("nextPageToken") or page.get("NextPageLink")
            continued[kind] = continued.get(kind, True) and bool(follows)
            for entry in page[kind]:
                rows_or_reason = _read(file, kind, entry, day)
                if isinstance(rows_or_reason, str):
                    imported.left_out[rows_or_reason] += 1
                else:
                    imported.rows += rows_or_reason
    imported.continues = any(continued.values())
    imported.rows = _in_periods(imported.rows)
    imported.rows += list(_hosts(imported.rows))
    if not imported.rows:
        raise PriceError(
            "has no price of a machine in the catalogue",
            file=named,
            remedy="export Compute Engine (service 6F81-5844-456A) or the serviceName Virtual Machines; "
            "caloscale prices --machines lists what is known",
        )
    try:
        Prices([read_rows(CATALOGUE, PriceRow, PriceError), [(f"{named}, {row.source}", row) for row in imported.rows]])
    except PriceError as error:
        error.remedy = "import a list with its spot price, too"
        raise
    return imported


def _pages(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    remedy = "export a list again: of Google's Cloud Billing Catalog (skus) or of Azure's Retail Prices (Items)"
    try:
        pages = json.loads(file.read_bytes())
    except OSError as error:
        raise PriceError(f"cannot be read: {error.strerror}", file=file, remedy=remedy) from error
    except ValueError as error:
        raise PriceError("is no JSON", file=file, remedy=remedy) from error
    for page in pages if isinstance(pages, list) else [pages]:
        kind = next((k for k in ("skus", "Items") if isinstance(page, dict) and isinstance(page.get(k), list)), None)
        if kind is None:
            raise PriceError("is no price list of Google or Azure", file=file, remedy=remedy)
        yield kind, page


def _read(file: Path, kind: str, entry: Any, day: dt.date) -> list[PriceRow] | str:
    try:
        return _of_google(entry, day) if kind == "skus" else _of_azure(entry, day)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"has an entry that is not as the cloud documents it: {type(error).__name__} {error}"
        raise PriceError(problem, file=file, field=kind, value=entry, remedy="export the list again") from error


def _of_google(sku: dict[str, Any], day: dt.date) -> list[PriceRow] | str:
    text, usage = sku["description"], sku["category"]["usageType"]
    if usage not in ("OnDemand", "Preemptible"):
        return f"bought by {usage}"
    kind: Kind = "gpu"
    if match := _GPU.match(text):
        name = _GPUS[match["name"]]
    elif match := _TPU.match(text):
        kind, name = "tpu_chip", match["name"].lower()
    elif match := _HOST.match(text):
        kind = "vcpu" if match["part"] == "Core" else "mem_gib"
        name = "n1" if match["family"].startswith("N1") else match["family"]
    else:
        return "not in the catalogue"
    spot = usage == "Preemptible"
    if spot != bool(match["spot"]):
        return "description and usage type differ"
    rows, source = [], f"Cloud Billing Catalog, SKU {sku['skuId']}"
    timeline = sorted(sku["pricingInfo"], key=lambda one: one["effectiveTime"])
    for since, info in {one["effectiveTime"][:10]: one for one in timeline}.items():  # of a day the last
        expression = info["pricingExpression"]
        if expression["usageUnit"] != ("GiBy.h" if kind == "mem_gib" else "h"):
            return f"sold by {expression['usageUnit']}"
        if len(expression["tieredRates"]) != 1:
            return "priced in tiers"
        price = expression["tieredRates"][0]["unitPrice"]
        _check_currency(price["currencyCode"])
        usd = int(price.get("units") or 0) + int(price.get("nanos") or 0) / 1e9
        if usd == 0:
            return "without a price"
        rows += [_row("gcp", region, kind, name, spot, usd, day, since, source) for region in sku["serviceRegions"]]
    return rows or "without a price"


def _of_azure(item: dict[str, Any], day: dt.date) -> list[PriceRow] | str:
    name, sold = item["armSkuName"].removeprefix("Standard_"), item["skuName"]
    if item["type"] != "Consumption":
        return f"bought by {item['type']}"
    if "Windows" in item["productName"] or "Cloud Services" in item["productName"]:
        return "with Windows, or of Cloud Services"
    if sold.endswith("Low Priority"):
        return "bought as low priority"
    if name not in {m.machine_type for m in load_machines() if m.provider == "azure"}:
        return "not in the catalogue"
    if item["unitOfMeasure"] != "1 Hour":
        return f"sold by {item['unitOfMeasure']}"
    _check_currency(item["currencyCode"])
    if item["retailPrice"] == 0:
        return "without a price"
    spot, source = sold.endswith("Spot"), f"Azure Retail Prices, meter {item['meterId']}"
    since = item["effectiveStartDate"]
    return [_row("azure", item["armRegionName"], "vm", name, spot, item["retailPrice"], day, since, source)]


def _check_currency(currency: str) -> None:
    if currency != "USD":
        raise PriceError("is in another currency", field="currency", value=currency, remedy="export the list in USD")


def _row(
    provider: str, region: str, kind: Kind, sku: str, spot: bool, usd: float, day: dt.date, since: str, source: str
) -> PriceRow:
    named = {"provider": provider, "region": region, "sku_kind": kind, "sku": sku, "unit": UNITS[kind]}
    bought = {"capacity_type": "spot" if spot else "on-demand", "waiver": "as the cloud lists it" if spot else ""}
    priced = {"usd_per_unit_hour": round(usd, 9), "includes_host": provider == "azure", "source": source}
    days = {"effective_from": since[:10], "observed_on": day}
    return PriceRow.model_validate(named | bought | priced | days, by_name=True)


def _hosts(rows: Sequence[PriceRow]) -> Iterator[PriceRow]:
    """What the host of a GPU costs in each period, from its cores and memory, where a list has both."""
    for core, memory in product((row for row in rows if row.sku_kind == "vcpu"), rows):
        if memory.key != core.key._replace(sku_kind="mem_gib") or not core.overlaps(memory):
            continue
        for host in _HOSTS.get(core.sku, ()):
            machine = next(m for m in load_machines() if m.price_sku == host)
            usd = machine.vcpus * core.usd_per_unit_hour + machine.memory_gib * memory.usd_per_unit_hour
            derived = {
                "sku_kind": "vm",
                "sku": host,
                "unit": "vm",
                "usd_per_unit_hour": round(usd / machine.price_units, 9),
                "effective_from": max(core.effective_from, memory.effective_from),
                "effective_to": min((core, memory), key=lambda row: row.last_day).effective_to,
                "observed_on": min(core.observed_on, memory.observed_on),
                "source": f"{core.source} and {memory.source}",
                "confidence": "derived",
            }
            yield core.model_copy(update=derived)


def _in_periods(rows: Sequence[PriceRow]) -> list[PriceRow]:
    """The rows of each price, each in effect until the day before the next. Raises PriceError where two contradict."""
    periods: dict[Key, list[PriceRow]] = {}
    for row in sorted(rows, key=lambda row: (row.effective_from, row.observed_on)):
        earlier = periods.setdefault(row.key, [])
        if earlier and earlier[-1].effective_from == row.effective_from:
            old = earlier.pop()
            if old.usd_per_unit_hour != row.usd_per_unit_hour:
                problem = f"has two prices of {row.sku} in {row.region}, {row.capacity_type}: "
                problem += f"{old.source}, {row.source}"
                value = (old.usd_per_unit_hour, row.usd_per_unit_hour)
                raise PriceError(problem, field="usd_per_unit_hour", value=value, remedy="remove one of the two")
        if earlier:
            earlier[-1] = earlier[-1].model_copy(update={"effective_to": row.effective_from - dt.timedelta(days=1)})
        earlier.append(row)
    return [row for of_key in periods.values() for row in of_key]
