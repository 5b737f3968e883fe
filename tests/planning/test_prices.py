import csv
import datetime as dt
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloscale.cli.options import day_of
from caloscale.errors import PriceError
from caloscale.planning.catalogue.hardware import find_machine, load_machines, own_machine
from caloscale.planning.catalogue.prices import Key, PriceRow, list_prices, load_prices, node_rate, stale_warning, today
from caloscale.planning.catalogue.rows import SourcedRow, read_rows, rows_csv
from caloscale.spec import build_run
from caloscale.stages import planning

TODAY = dt.date(2026, 11, 21)
STUDY = dt.date(2022, 6, 1)
V100 = Key("gcp", "europe-west4", "gpu", "nvidia-tesla-v100", "spot")
GOOD = {
    "provider": "gcp",
    "region": "europe-west4",
    "sku_kind": "gpu",
    "sku": "nvidia-tesla-v100",
    "unit": "gpu",
    "capacity_type": "spot",
    "usd_per_unit_hour": "0.9",
    "effective_from": "2026-06-01",
    "observed_on": "2026-06-01",
    "source": "my own bill of June",
    "includes_host": "no",
}
COLUMNS = (*GOOD, "effective_to", "confidence", "waiver", "note")


def write(path, *rows):
    with path.open("w") as file:
        table = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    return path


def layer(tmp_path, *changes):
    """Prices of rows that are GOOD with changes."""
    return load_prices([write(tmp_path / "layer.csv", *({**GOOD, **change} for change in changes))])


def test_azure_and_n1_prices_agree_with_libcloud():
    libcloud = pytest.importorskip("libcloud.pricing")
    prices = load_prices()
    n1 = libcloud.get_pricing("compute", "gce_instances")["n1"]
    for kind, part in (("vcpu", "cpu"), ("mem_gib", "ram")):
        for capacity_type, theirs in (("on-demand", "on_demand"), ("spot", "preemptible")):
            for region in ("us-central1", "europe-west4"):
                ours = prices.find(Key("gcp", region, kind, "n1", capacity_type), STUDY)
                assert ours.usd_per_unit_hour == n1[part][theirs][region]["price"]
    azure = libcloud.get_pricing("compute", "azure_linux")
    checked = 0
    for row in prices.rows:
        tier = "standard" if row.capacity_type == "on-demand" else "lowpriority"
        theirs = azure.get(tier + row.sku.lower().replace("_", ""), {})
        if row.provider == "azure" and row.region in theirs:
            assert row.usd_per_unit_hour == theirs[row.region], row
            checked += 1
    assert checked == 8


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("usd_per_unit_hour", "0", "greater than 0"),
        ("usd_per_unit_hour", "-1", "greater than 0"),
        ("usd_per_unit_hour", "nan", "greater than 0|finite"),
        ("usd_per_unit_hour", "700.0", "unknown price"),
        ("usd_per_unit_hour", "cheap", "number"),
        ("usd_per_unit_hour", "", "is missing"),
        ("effective_from", "", "is missing"),
        ("observed_on", "", "is missing"),
        ("observed_on", "June", "date"),
        ("observed_on", "2999-01-01", "in the future"),
        ("source", "", "is missing"),
        ("capacity_type", "preemptible", "on-demand"),
        ("provider", "gpc", "gcp"),
        ("unit", "gpu second", "another unit"),
        ("includes_host", "yes", "rows that are added"),
        ("sku", "Nvidia-Tesla-V100", "catalogue has as gpu"),
    ],
)
def test_a_bad_cell_is_refused_with_file_line_and_column(tmp_path, field, value, says):
    file = write(tmp_path / "mine.csv", GOOD, {**GOOD, "effective_from": "2027-01-01"} | {field: value})
    with pytest.raises(PriceError, match=says) as error:
        load_prices([file])
    assert error.value.file == f"{file}:3"
    assert error.value.field == field
    assert error.value.remedy


@pytest.mark.parametrize(
    ("kind", "sku", "unit"), [("vcpu", "n11", "vcpu"), ("tpu_chip", "v55", "chip"), ("disk_gib", "b", "gib")]
)
def test_a_row_that_no_node_is_priced_by_is_refused(tmp_path, kind, sku, unit):
    with pytest.raises(PriceError, match=f"catalogue has as {kind}"):
        layer(tmp_path, {"sku_kind": kind, "sku": sku, "unit": unit})


@pytest.mark.parametrize(
    ("key", "day", "says"),
    [
        (V100._replace(region="europe-north1"), TODAY, "europe-west4, us-central1"),
        (V100._replace(sku="nvidia-tesla-v10"), TODAY, "did you mean 'nvidia-tesla-v100'"),
        (V100, dt.date(2021, 12, 31), "2022-01-01 to 2025-12-31"),
        (Key("azure", "eastus", "vm", "NC24s_v3", "spot"), TODAY, "2022-01-01 to 2025-09-30"),
        (Key("gcp", "europe-west4", "vm", "a3-ultragpu-8g", "spot"), TODAY, "no spot price"),  # a name that exists
    ],
)
def test_a_missing_price_names_the_row_to_add(key, day, says):
    with pytest.raises(PriceError, match=says) as error:
        load_prices().find(key, day)
    assert ("did you mean" in error.value.remedy) == ("did you mean" in says)
    *what, capacity_type = key
    assert f"add a row '{','.join(what)},...,{capacity_type}'" in error.value.remedy


def test_the_list_of_a_day_has_one_price_of_each_kind():
    listed = list_prices(load_prices(), TODAY, region="europe-west4", sku="v100")
    assert {row.capacity_type: row.usd_per_unit_hour for row in listed.rows} == {"on-demand": 2.604, "spot": 1.0443}
    assert len(listed.rows) == 2
    assert len(listed.warnings) == 2
    everything = list_prices(load_prices(), TODAY).rows
    assert not any(row.sku == "NC24s_v3" for row in everything) and len(everything) > 50


@given(st.text(max_size=300))
def test_no_text_crashes_the_loader(tmp_path_factory, text):
    file = tmp_path_factory.mktemp("prices") / "any.csv"
    file.write_text(text, encoding="utf-8")
    try:
        rows = read_rows(file, PriceRow, PriceError)
    except PriceError as error:
        assert error.remedy
    else:
        assert rows == []


def test_files_that_are_not_catalogues_are_refused(tmp_path):
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    for file in (tmp_path / "absent.csv", tmp_path, tmp_path / "binary.csv"):
        with pytest.raises(PriceError, match="cannot be read"):
            load_prices([file])


@pytest.mark.parametrize(
    ("machine_type", "accelerator", "per_node", "region", "capacity_type", "day", "usd"),
    [  # SkyPilot's own rows for whole machines
        ("n1-standard-8", "", 0, "us-central1", "on-demand", TODAY, 0.38),
        ("n1-standard-96", "", 0, "us-central1", "spot", TODAY, 1.25352),
        ("n1-standard-96", "", 0, "europe-west4", "spot", TODAY, 2.00808),
        ("n1-standard-96", "", 0, "us-central1", "spot", STUDY, 0.96),
        ("a2-highgpu-8g", "nvidia-tesla-a100", 8, "us-central1", "on-demand", TODAY, 5.91582 + 23.47126),
        ("g2-standard-96", "nvidia-l4", 8, "europe-west4", "spot", TODAY, 1.7159 + 8 * 0.244),
        ("n1-standard-64", "nvidia-tesla-v100", 8, "us-central1", "spot", STUDY, 0.64 + 5.92),
        ("ND40rs_v2", "", 0, "eastus", "spot", TODAY, 4.406),
    ],
)
def test_machines_cost_what_the_published_whole_costs(
    machine_type, accelerator, per_node, region, capacity_type, day, usd
):
    machine = find_machine(machine_type, accelerator=accelerator, per_node=per_node)
    rate = node_rate(load_prices(), machine, region, capacity_type, day)
    assert rate.usd_per_hour == pytest.approx(usd, abs=5e-4)
    assert rate.usd_per_hour == pytest.approx(sum(part.usd_per_hour for part in rate.parts))


def test_machine_rows_agree_with_their_names():
    assert len({(m.provider, m.title) for m in load_machines()}) == len(load_machines())
    for machine in load_machines():
        assert machine.source and bool(machine.accelerator) == bool(machine.per_node)
        assert bool(machine.price_sku) == (machine.priced_by != "none")
        tail = machine.machine_type.rsplit("-", 1)[-1]
        if tail.endswith("g") and tail[:-1].isdigit():
            assert machine.per_node == int(tail[:-1])
        if machine.machine_type.startswith(("n1-", "g2-")):
            assert machine.vcpus == int(tail)


def test_prices_that_are_too_old_are_refused_and_say_which_row_to_add():
    seen = load_prices().find(V100, TODAY).observed_on
    age = (TODAY - seen).days
    assert load_prices().no_older_than(age).find(V100, TODAY).observed_on == seen
    with pytest.raises(PriceError, match=rf"(?s){age} days old on {TODAY}.*seen after {seen}") as refused:
        load_prices().no_older_than(age - 1).find(V100, TODAY)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("added", [None, "to the ConfigMap caloscale-prices"])
def test_a_remedy_says_how_a_row_is_added_there(added):
    """Who reads it on a cluster has no command to give an option to."""
    prices = load_prices() if added is None else load_prices(added=added)
    named = added or "with --prices FILE"
    keys = {V100._replace(region="mars-1"): TODAY, V100: dt.date(2021, 12, 31)}
    for key, day in keys.items():
        with pytest.raises(PriceError) as missing:
            prices.find(key, day)
        assert named in missing.value.remedy
    with pytest.raises(PriceError) as old:
        prices.no_older_than(1).find(V100, TODAY)
    machine = find_machine("n1-standard-64", accelerator="nvidia-tesla-v100", per_node=8)
    warnings = node_rate(prices, machine, "europe-west4", "spot", TODAY).warnings
    listed = list_prices(prices, TODAY, region="europe-west4", sku="v100").warnings
    for text in (old.value.remedy, *warnings, *listed):
        assert named in text and (added is None or "--prices" not in text)
    assert warnings and listed


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Etc/GMT+12"])
def test_the_day_of_prices_is_the_same_in_all_time_zones(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any time one of the two zones (UTC+14, UTC-12) has another day than UTC."""
    days: list[dt.date] = []
    monkeypatch.setattr(planning, "need_price", lambda _, day: days.append(day))
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        before = dt.datetime.now(dt.UTC).date()
        planning.plan_of(build_run({"model": {"preset": "compact"}}))
        used = {today(), day_of(None), *days}
        after = dt.datetime.now(dt.UTC).date()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert days and used <= {before, after}


def test_a_price_holds_from_its_first_to_its_last_day(tmp_path):
    first = {"effective_to": "2026-06-30", "usd_per_unit_hour": "0.8"}
    prices = layer(tmp_path, first, {"effective_from": "2026-07-01"})
    days = (dt.date(2026, 5, 31), dt.date(2026, 6, 1), dt.date(2026, 6, 30), dt.date(2026, 7, 1), dt.date.max)
    assert [prices.find(V100, day).usd_per_unit_hour for day in days] == [1.0443, 0.8, 0.8, 0.9, 0.9]
    with pytest.raises(PriceError, match="a second time for the same days") as refused:
        layer(tmp_path, first, {"effective_from": "2026-06-30"})
    assert refused.value.file == f"{tmp_path / 'layer.csv'}:3"
    assert (refused.value.field, refused.value.value) == ("effective_from", "2026-06-30")
    assert "layer.csv:2" in refused.value.remedy
    layer(tmp_path, first, {"effective_from": "2026-06-30", "sku": "nvidia-a100-80gb"})
    layer(tmp_path, {"effective_to": "2026-06-01"})
    with pytest.raises(PriceError, match="effective_to is before effective_from"):
        layer(tmp_path, {"effective_to": "2026-05-31"})


def test_spot_is_below_on_demand_of_the_same_days(tmp_path):
    listed = {"capacity_type": "on-demand", "usd_per_unit_hour": "1.1", "effective_to": "2026-06-30"}
    layer(tmp_path, listed, {"usd_per_unit_hour": "1.0999"})
    layer(tmp_path, listed, {"usd_per_unit_hour": "1.1", "effective_from": "2026-07-01"})
    layer(tmp_path, listed, {"usd_per_unit_hour": "5", "waiver": "an auction"})
    with pytest.raises(PriceError, match=r"is not below on demand \(1\.1\)") as refused:
        layer(tmp_path, listed, {"usd_per_unit_hour": "1.1", "effective_from": "2026-06-30"})
    assert refused.value.file == f"{tmp_path / 'layer.csv'}:3"
    assert (refused.value.field, refused.value.value) == ("usd_per_unit_hour", 1.1)
    with pytest.raises(PriceError, match=r"is not below on demand \(2\.604\)"):  # of the catalogue
        layer(tmp_path, {"usd_per_unit_hour": "2.604"})


def test_spot_is_below_the_on_demand_price_that_is_found_on_each_day(tmp_path):
    """Whichever file has it: the catalogue has 2.604 on demand and 1.0443 spot from 2026-01-01 on."""
    first = {"capacity_type": "on-demand", "usd_per_unit_hour": "3", "effective_to": "2026-06-30"}
    later = {"capacity_type": "on-demand", "usd_per_unit_hour": "3", "effective_from": "2030-01-01"}
    layer(tmp_path, {"usd_per_unit_hour": "2.9", "effective_to": "2026-06-30"}, first)
    for own in ((later,), (first,), (first, later)):  # the day after what is in the file, and one before
        with pytest.raises(PriceError, match=r"spot price .* is not below on demand \(2\.604\)") as refused:
            layer(tmp_path, {"usd_per_unit_hour": "2.9"}, *own)
        assert refused.value.file == f"{tmp_path / 'layer.csv'}:2"
    cheap = {"capacity_type": "on-demand", "usd_per_unit_hour": "1.0443"}
    with pytest.raises(PriceError, match=r"on-demand price .* is not above spot \(1\.0443\) on 2026-06-01") as refused:
        layer(tmp_path, cheap)
    assert refused.value.value == 1.0443
    layer(tmp_path, cheap, {"usd_per_unit_hour": "1.0442"})
    with pytest.raises(PriceError, match=r"is not above spot \(1\.0443\) on 2026-07-01"):
        layer(tmp_path, cheap, {"usd_per_unit_hour": "1.0442", "effective_to": "2026-06-30"})
    layer(tmp_path, {**cheap, "usd_per_unit_hour": "0.5", "effective_to": "2021-12-31", "effective_from": "2021-01-01"})
    layer(tmp_path, {**cheap, "effective_to": "9999-12-31"}, {"usd_per_unit_hour": "5", "waiver": "an auction"})


def test_prices_are_stale_after_ninety_days(tmp_path):
    days = 90
    for capacity_type, usd in (("spot", "0.9"), ("on-demand", "3")):
        prices = layer(tmp_path, {"capacity_type": capacity_type, "usd_per_unit_hour": usd})
        row = prices.find(V100._replace(capacity_type=capacity_type), TODAY)
        last = row.observed_on + dt.timedelta(days=days)
        assert stale_warning([row], last) == []
        (warning,) = stale_warning([row], last + dt.timedelta(days=1), "to the file")
        assert warning.startswith(f"the {capacity_type} price of nvidia-tesla-v100 in europe-west4 was seen on 2026-06")
        assert f"{days + 1} days before" in warning and warning.endswith("add a fresh row to the file")


def test_a_list_of_nothing_says_what_there_is(tmp_path):
    prices = layer(tmp_path, *({"provider": "none", "region": "aa-1", "sku": sku} for sku in ("Mine", "other")))
    assert [row.sku for row in list_prices(prices, TODAY, region="aa-1").rows] == ["Mine", "other"]
    assert [row.sku for row in list_prices(prices, TODAY, region="aa-1", sku="MIN").rows] == ["Mine"]
    regions = ", ".join(sorted({row.region for row in prices.rows}))
    sold = ", ".join(sorted({row.sku for row in prices.rows}))
    for asked, field, value, remedy in (
        ({"region": "mars"}, "--region", "mars", f"one of {regions}"),
        ({"sku": "xyz"}, "--sku", "xyz", f"a part of {sold}"),
        ({"sku": "v100", "region": "aa-1"}, "--sku", "v100", "a part of Mine, other"),
    ):
        with pytest.raises(PriceError) as refused:
            list_prices(prices, TODAY, **asked)
        assert (refused.value.field, refused.value.value, refused.value.remedy) == (field, value, remedy)
    assert "is in no name of what is sold in aa-1" in str(refused.value)
    for asked, words in (({}, "no price is in effect"), ({"region": "aa-1"}, "no price of --region aa-1 is in effect")):
        with pytest.raises(PriceError, match=words) as refused:
            list_prices(prices, dt.date(2019, 1, 1), **asked)
        assert (refused.value.field, refused.value.value) == ("prices", "2019-01-01")
    with pytest.raises(PriceError, match="no price of --region aa-1 --sku min is in effect"):
        list_prices(prices, dt.date(2019, 1, 1), region="aa-1", sku="min")
    assert prices.regions(own_machine("box", "Mine", 8)) == ["aa-1"] and prices.regions(own_machine("third")) == ["own"]
    assert prices.rows[0].region == "aa-1"


def test_a_rate_names_its_rows(tmp_path):
    prices = layer(tmp_path, {"confidence": "suspect", "note": "read from a screen", "observed_on": "2026-10-01"})
    machine = find_machine("n1-standard-64", accelerator="nvidia-tesla-v100", per_node=8)
    rate = node_rate(prices, machine, "europe-west4", "spot", TODAY)
    assert [(part.kind, part.sku, part.quantity, part.usd_per_unit_hour) for part in rate.parts] == [
        ("vcpu", "n1", 64, 0.01392),
        ("mem_gib", "n1", 240, 0.001866),
        ("gpu", "nvidia-tesla-v100", 8, 0.9),
    ]
    assert [part.usd_per_hour for part in rate.parts] == pytest.approx([64 * 0.01392, 240 * 0.001866, 7.2])
    assert (rate.parts[2].source, rate.parts[2].observed_on) == (GOOD["source"], dt.date(2026, 10, 1))
    assert (rate.title, rate.region, rate.capacity_type) == (machine.title, "europe-west4", "spot")
    assert rate.observed_on == dt.date(2026, 1, 1)
    assert rate.warnings[0] == "the price of nvidia-tesla-v100 in europe-west4 is doubtful: read from a screen"
    assert len(rate.warnings) == 3  # those of the host are old
    unpriced = machine.model_copy(update={"priced_by": "none"})
    with pytest.raises(PriceError, match="a machine of your own") as refused:
        node_rate(prices, unpriced, "europe-west4", "spot", TODAY)
    assert (refused.value.field, refused.value.value) == ("machineType", "n1-standard-64")


class Row(SourcedRow):
    """A row of a small catalogue."""

    name: str
    """Text."""
    number: int = 7
    """May be empty."""


HEADER = "source,observed_on,name,number"


@pytest.mark.parametrize(
    ("text", "place", "field", "value", "words"),
    [
        ("", "", None, None, "has no header line.*source,observed_on,name,number"),
        ("# nothing\n\n", "", None, None, "has no header line"),
        ("source,colour\n", "", None, ["source", "colour"], f"unknown or doubled columns.*{HEADER}"),
        ("source,source\n", "", None, ["source", "source"], "unknown or doubled columns"),
        ("source;name\n", "", None, ["source;name"], "by commas, and write decimal points: use source"),
        (f"{HEADER}\na b c,1.2.2026,x,1\n", ":2", "observed_on", "1.2.2026", "write a date such as 2026-11-21"),
        (f"{HEADER}\n\n# c\na b c,2026-01-02\n", ":4", None, None, "has 2 cells, the header has 4.*check the commas"),
        (f'{HEADER}\na b c,2026-01-02,"x\ny",1\n', ":2", None, None, "is not CSV.*no line breaks inside"),
        (f'{HEADER}\na b c,2026-01-02,"x"y,1\n', ":2", None, None, "is not CSV"),
        (f"{HEADER}\na b c,2026-01-02,x,many\n", ":2", "number", "many", "write a whole number, such as 7"),
        (f"{HEADER}\nab,2026-01-02,x,1\n", ":2", "source", "ab", "at least 3"),
        (f"{HEADER}\na b c,2026-01-02, ,1\n", ":2", "name", None, "is missing"),
    ],
)
def test_a_file_of_rows_is_refused_at_its_line(tmp_path, text, place, field, value, words):
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(PriceError, match=f"(?s){words}") as refused:
        read_rows(tmp_path / "rows.csv", Row, PriceError)
    error = refused.value
    assert (error.file, error.field, error.value) == (f"{tmp_path / 'rows.csv'}{place}", field, value)
    assert error.remedy


def test_rows_are_read_with_their_lines_and_written_again(tmp_path):
    """Also from a file that Excel saved as UTF-8."""
    file = tmp_path / "rows.csv"
    text = "\ufeff# comment\nname,source,observed_on,number\n\n x , a b c ,2026-01-02,\ny,d e f,2026-01-03,8\n"
    file.write_text(text, encoding="utf-8")
    found = read_rows(file, Row, PriceError)
    rows = [
        Row(name="x", source="a b c", observed_on=dt.date(2026, 1, 2)),
        Row(name="y", source="d e f", observed_on=dt.date(2026, 1, 3), number=8),
    ]
    assert found == [(f"{file}:4", rows[0]), (f"{file}:5", rows[1])]
    file.write_text(rows_csv(Row, rows))
    assert [row for _, row in read_rows(file, Row, PriceError)] == rows
    price = load_prices().find(V100, TODAY)
    assert price.effective_to is None
    file.write_text(rows_csv(PriceRow, [price]))
    assert read_rows(file, PriceRow, PriceError) == [(f"{file}:2", price)]
    assert "None" not in file.read_text()
