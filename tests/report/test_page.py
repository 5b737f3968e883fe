import base64
import datetime as dt
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from caloscale.physics import binning, quantities
from caloscale.physics.result import Measured
from caloscale.physics.worth import Amplification, Number, Worth, count, worth_of
from caloscale.planning.billing.bill import bill
from caloscale.planning.billing.usage import Attempt, NodeUse, RunUse
from caloscale.planning.catalogue.prices import load_prices
from caloscale.report.bill import bill_blocks, money_section
from caloscale.report.blocks import (
    Cell,
    Details,
    Fact,
    Facts,
    Figure,
    Notice,
    Page,
    Section,
    Statement,
    Table,
    Text,
    Values,
    anchor,
    markdown,
    words,
)
from caloscale.report.html import render
from caloscale.report.numbers import percent, signed, with_uncertainty
from caloscale.report.physics_sections import (
    definitions_section,
    gate_tables,
    observables_table,
    physics_section,
    ranges_table,
    verdict_markdown,
    verdict_section,
    worth_tables,
    worth_text,
)
from caloscale.report.run import StageSummary, profile_section, speed_section, training_section
from tests.report.test_figures import PROFILE

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
STAGES = {
    "simulate": StageSummary(seconds=100.0, core_seconds=200.0, peak_memory_mib=512.0, outcome="succeeded"),
    "train": StageSummary(seconds=50.0, core_seconds=90.0, peak_memory_mib=0.0, outcome="failed"),
}
PROVENANCE = {
    "caloscale": "1.2.3",
    "run configuration": "model:\n  preset: compact\n",
    "data": {"files": [{"name": "showers-00000.h5", "sha256": "ab" * 32, "showers": 100}]},
    "versions": {},
}
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Reader(HTMLParser):
    """What a screen reader finds: headings, links, images, cells. Refuses tags that do not close."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[tuple[int, str]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))
            if tag[0] == "h" and tag[1:].isdigit():
                self.headings.append((int(tag[1]), ""))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open and self.open[-1][0][0] == "h" and self.open[-1][0][1:].isdigit():
            level, text = self.headings[-1]
            self.headings[-1] = (level, text + data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def figure(tmp_path: Path) -> Figure:
    (tmp_path / "one.png").write_bytes(PNG)
    return Figure("one", "A figure <b>", "A caption & more", 'Two "curves" cross', tmp_path / "one.png")


def page(*sections: Section, **changes) -> str:
    arguments = {"title": "run <demo>", "lead": "", "notices": ()}
    return render(Page(**(arguments | changes), sections=sections))


@pytest.fixture
def whole(distorted, figure) -> str:
    """A page with every block and section."""
    every = Section("Every & block", (Details("more", (Text("inside"), Values({"a": 1.23456}))), Notice("look")))
    return page(
        verdict_section(distorted),
        physics_section(distorted, [figure]),
        training_section([], {"steps": 1234}),
        profile_section(PROFILE, []),
        speed_section([Fact("generation", "987 showers/s")], STAGES),
        money_section("no price; remedy: add one"),
        every,
        Section("Provenance", (Values(PROVENANCE),)),
        definitions_section(),
    )


def test_the_page_needs_nothing_else(whole):
    found = Reader(whole)
    sources = [
        value for _, attributes in found.tags for name in ("src", "srcset", "data") if (value := attributes.get(name))
    ]
    assert len(sources) == 1 and sources[0] == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    (image,) = found.all("img")
    assert image["alt"] == 'Two "curves" cross' and (image["width"], image["height"]) == ("1", "1")
    assert [script.get("src") for script in found.all("script")] == [None] and not found.all("link")
    assert "@import" not in whole and "url(" not in whole


def test_the_verdict_comes_first_and_tables_have_headers_with_scope(whole, distorted):
    assert whole.index(">Verdict</h2>") < whole.index("<table") < whole.index("<img")
    assert distorted.reasons[0] in whole and ">rejected</span>" in whole and ">back-propagation<" in whole
    found = Reader(whole)
    assert found.all("th") and all(th.get("scope") in ("col", "row") for th in found.all("th"))
    # Where rows are cards, on narrow screens, each cell carries the name of its column.
    assert all(td.get("data-column") for td in found.all("td"))
    tables = whole.split("<table")[1:]
    assert all(table.count('scope="col"') for table in tables)
    shown = [table for table in tables if "<caption>" in table]
    assert len(shown) == 9
    for table in shown:
        body = table.split("<tbody")[1].split("</tbody>")[0]
        assert body.count("<tr") == body.count('scope="row"')


def test_the_contents_lead_to_every_section_and_figure_and_headings_descend_one_level_at_a_time(whole):
    found = Reader(whole)
    names = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(set(names)) == len(names)
    links = [a["href"] for a in found.all("a")]
    assert links and all(link.removeprefix("#") in names for link in links)
    titles = [title for level, title in found.headings if level > 1]
    cells = {link for link in links if link.startswith(("#gate-", "#observable-"))}
    assert {f"#{anchor(title)}" for title in titles} == set(links) - cells and cells
    for _, attributes in found.tags:
        assert attributes.get("aria-labelledby", names[0]) in names
    levels = [level for level, _ in found.headings]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_the_tables_show_each_gate_and_each_observable(distorted):
    (gates,), observables = gate_tables(distorted), observables_table(distorted)
    assert all("600 generated and 240 held-out Monte Carlo showers" in table.caption for table in (gates, observables))
    assert [(row[0].text, row[-1]) for row in gates.rows] == [
        ("Mean response", Cell("rejected", "bad")),
        ("Separation: Longitudinal profile", Cell("accepted", "good")),
    ]
    assert len(observables.rows) == len(distorted.observables)


def test_each_gate_and_each_observable_is_defined_in_the_page(distorted):
    linked = [row[0].link for row in (*gate_tables(distorted)[0].rows, *observables_table(distorted).rows)]
    html = page(verdict_section(distorted), physics_section(distorted, []), definitions_section())
    assert linked[:2] == ["gate-response", "observable-longitudinalProfile"]
    for name in linked:
        assert html.count(f'<a href="#{name}">') >= 1 and html.count(f'id="{name}"') == 1
    measured = {name for name in distorted.quantities if not name.endswith("Separation")}
    assert measured == set(quantities.DEFINITIONS) and set(distorted.observables) == set(binning.DEFINITIONS)


def test_definitions_are_those_of_the_pages():
    docs = Path(__file__).parents[2] / "docs"
    for name, module in (("physics.md", quantities), ("observables.md", binning)):
        rows = re.findall(r"^\| `(\w+)`(?:, `Y`)? \| (.*?) \|", (docs / name).read_text("utf-8"), re.MULTILINE)
        sourced = {key: re.sub(r" \(\[.*?\]\(.*?\)\)", "", text) for key, text in rows}
        shown = {key: text.replace("`", "") for key, text in sourced.items() if key in module.DEFINITIONS}
        if "transverseProfileX" in shown:
            shown["transverseProfileY"] = shown["transverseProfileX"]
        assert shown == module.DEFINITIONS


def test_ranges_have_a_row_for_each_sample(undistorted):
    evaluation = undistorted.evaluation
    table = ranges_table(evaluation)
    assert len(set(table.columns)) == len(table.columns)
    for k, energy in enumerate(evaluation.energy_ranges):
        monte_carlo, generator, ratio = table.rows[3 * k : 3 * k + 3]
        resolution = evaluation.weighted_resolution.ranges[k]
        assert ratio[-1] == with_uncertainty(resolution.ratio.value, resolution.ratio.uncertainty)
        assert monte_carlo[0] == f"{energy.label}, Monte Carlo" and monte_carlo[1] == f"{energy.reference:,}"
        assert generator[0] == f"{energy.label}, generator" and generator[1] == f"{energy.generated:,}"


def test_ranges_are_followed_by_particles(blurred):
    rows = ranges_table(blurred).rows[3 * len(blurred.energy_ranges) :]
    assert [row[0] for row in rows[::3]] == ["e-, all energies, Monte Carlo", "gamma, all energies, Monte Carlo"]
    response = blurred.particles[1].response.mev_per_gev.generated
    assert rows[4][4] == with_uncertainty(response.value, response.uncertainty) and rows[4][1] == "400"


def test_all_text_is_escaped(figure):
    html = page(
        Section("<i>", (Text("<u>"), Table("<b>", ("<th>", "x"), (("<td>", Cell("<s>")),)), figure)),
        notices=(Notice("failed", failed=True, detail="<script>alert(1)</script>"),),
    )
    assert "<script>alert" not in html and "&lt;script&gt;alert(1)" in html
    assert "run &lt;demo&gt;" in html and "A figure &lt;b&gt;" in html
    for tag in ("<i>", "<u>", "<b>", "<s>"):
        assert tag not in html
    Reader(html)


def worth_of_one(observed: Number, usd: float | None = None, generated: int = 1_000_000) -> Worth:
    worth = worth_of(observed, generated)
    named = {"quantity": "hits", "title": "Hits", "where": "5 to 17 GeV", "unit": "%", "members": 1, "per_shower": 20.0}
    row = Amplification(**named, predicted=None, observed=observed, worth=worth, usd_per_effective_shower=None)
    found = {"worst": row, "gated": (row,), "others": (row.model_copy(update={"title": "Response"}),)}
    sizes = {"reference": 10_000, "generated": 10_000, "worth_of": generated}
    return Worth(runs=(), source="geant4", **sizes, **found, usd=None).of_runs(("seed-1",), usd)


def test_the_worth_of_generated_showers_is_beside_the_verdict(distorted):
    html = page(verdict_section(distorted, worth_of_one(Number(value=79, low=51, high=132), usd=7.9)))
    Reader(html)
    assert (
        "A million generated showers are worth 79 Geant4 showers for this quantity: Hits, 5 to 17 GeV (95% interval 51 "
        "to 132); more buy nothing." in html
    )
    assert ">0.1<" in html and ">needs two generators<" in html
    assert ">Response<" not in html  # it has no gate
    assert html.index("A million generated") < html.index("Gates:") and ">Dropped gates" not in html
    assert "training showers" not in html[html.index("What generated showers are worth") :]
    worth = worth_of_one(Number(value=79, low=51, high=132))
    rows = tuple(row.model_copy(update={"training": Number(value=None, low=641, high=None)}) for row in worth.gated)
    learnt = page(verdict_section(distorted, worth.model_copy(update={"gated": rows})))
    assert "n of the training showers" in learnt and ">at least 641<" in learnt
    alone = page(verdict_section(distorted))  # by the validation itself
    assert f"A million generated showers are worth {count(distorted.worth.worst.worth.value)} " in alone
    assert "(seed-1)" in html and "Measured with 1 generator, 600 showers" in alone


@pytest.mark.parametrize(
    ("observed", "generated", "expected", "absent"),
    [
        (Number(value=1000, low=100, high=50_000), 10**6, "more buy nothing", "open"),
        (Number(value=1000, low=600, high=None), 2000, "whether more buy anything is open", "nothing"),
        (Number(value=9000, low=5000, high=None), 2000, "more are worth more", "nothing"),
        (Number(value=0.031, low=0.0051, high=0.047), 10**6, "worth 0.031 Geant4 showers", "interval 0 to"),
        (Number(value=None, low=3000, high=None), 10**6, "at least 2,991 Geant4 showers", "interval"),
    ],
)
def test_what_is_not_known_of_the_worth_is_said(observed, generated, expected, absent):
    worth = worth_of_one(observed, generated=generated)
    text = worth_text(worth).text
    assert expected in text and absent not in text
    assert "no bill" in markdown(*worth_tables(worth))


def test_a_run_without_physics_is_not_assessed():
    html = page(verdict_section(None), speed_section([], STAGES))
    Reader(html)
    assert ">not assessed</span>" in html and ">failed</td>" in html


def test_shares_of_a_small_bill_add_up():
    """A purpose whose money is rounded to nothing has a tenth of this bill."""
    held = NodeUse(machine_type="n1-standard-2", region="us-central1", capacity_type="on-demand", nodes=1, seconds=25)
    spent = {"training_seconds": 1.6, "evaluation_seconds": 2.8, "start_up_seconds": 20.6}
    use = RunUse(name="mine", day=dt.date(2026, 6, 1), attempts=(Attempt(nodes=(held,), **spent),), epochs=2)
    billed = bill(use, load_prices())
    assert 0.0 in [part.usd for part in billed.parts if part.share > 0.05]
    shares = re.findall(r"(\d+\.\d)%", markdown(*bill_blocks(billed)))
    assert sum(map(float, shares)) == pytest.approx(100, abs=0.2)


def test_cost_and_speed_are_shown():
    node = {"machine_type": "n1-standard-2", "region": "us-central1", "capacity_type": "on-demand"}
    held = NodeUse(**node, nodes=1, seconds=150)
    attempts = (Attempt(nodes=(held,), training_seconds=150),)
    use = RunUse(name="mine", day=dt.date(2026, 6, 1), attempts=attempts, own_machine=True, epochs=1)
    billed = bill(use, load_prices(), generation=(held.model_copy(update={"seconds": 0.0}), 987.0))
    html = page(money_section(billed), Section("Provenance", (Values(PROVENANCE),)))
    Reader(html)
    money = f"{billed.usd:.4f}", f"{billed.nodes[0].usd_per_node_hour:.4f}", "The prices that the rates come from"
    for text in (*node.values(), *money, "2026-06-01", "not converted"):
        assert text in html
    assert "ab" * 32 in html and "preset: compact" in html
    assert any(f"**{billed.usd:.4f}**" in line for line in markdown(*bill_blocks(billed)).splitlines())
    spot = attempts[0].model_copy(update={"nodes": (held.model_copy(update={"capacity_type": "spot"}),)})
    both = money_section(bill(use.model_copy(update={"attempts": (*attempts, spot)}), load_prices()))
    assert len(both.blocks[-1].blocks[0].values) == 2  # a rate of each capacity type
    many = bill(use.model_copy(update={"epochs": 1e6}), load_prices()).model_copy(update={"co2_kg": 0.001})
    text = markdown(*bill_blocks(many))
    assert (
        f"{150 / 3600 * billed.nodes[0].usd_per_node_hour / 1e6:.4g} USD an epoch, at most 0.1 kg CO2" in text
        and " 0.000" not in text.splitlines()[0]
    )
    assert "at most 4.6 kg" in markdown(*bill_blocks(many.model_copy(update={"co2_kg": 4.53})))


def test_what_is_absent_is_called_absent(degenerate):
    html = page(verdict_section(degenerate), physics_section(degenerate, []))
    Reader(html)
    assert "absent" in html and ">None<" not in html and "nan " not in html
    assert degenerate.fpd.reason in html


@pytest.mark.parametrize(
    ("value", "uncertainty", "text"),
    [
        (0.01234, 0.0045, "0.0123 ± 0.0045"),
        (26.8, 0.17, "26.80 ± 0.17"),
        (123.4, 56.7, "123 ± 57"),
        (6.34e-5, 2.4e-6, "(6.34 ± 0.24)e-5"),
        (0.5, None, "0.5"),
        (0.5, 0.0, "0.5"),
        (1.0, 7.6e-17, "1"),
        (None, 0.1, "absent"),
    ],
)
def test_uncertainties_have_two_digits(value, uncertainty, text):
    assert with_uncertainty(value, uncertainty) == text


def test_names_and_numbers_as_texts():
    assert signed(-1.26) == "-1.3 sigma" and signed(None) == "absent"
    assert percent(Measured(value=0.0432, uncertainty=0.0011)) == "4.32 ± 0.11 %"
    assert words("generatorLoss") == "generator loss" and words("real_fake/D.loss") == "real fake D loss"


def test_the_verdict_as_markdown(distorted, undistorted):
    text = verdict_markdown(distorted)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(distorted.gates) + 2 + len(distorted.observables)
    assert {line.count("|") for line in lines} == {7, 9}
    assert text.startswith("**Rejected: Mean response")
    assert verdict_markdown(undistorted.evaluation).startswith("**Not assessed: ")


def test_markdown_of_blocks():
    table = Table("caption", ("a", "b"), (("x|y", Cell("1", "bad")), ("all", "2")), total=True, note="note")
    text = markdown(Statement("accepted", "all met.", "good"), table)
    assert text == (
        "**Accepted: all met.**\n\ncaption:\n\n| a | b |\n| --- | ---: |\n| x/y | 1 |\n| **all** | **2** |\n\nnote\n"
    )
    with pytest.raises(TypeError, match="Facts"):
        markdown(Facts(()))
