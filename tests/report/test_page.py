from __future__ import annotations

import base64
import datetime as dt
from html.parser import HTMLParser
from pathlib import Path

import pytest

from caloscale.planning.cost import StageUse, price_run
from caloscale.planning.prices import load_prices
from caloscale.report import render_report
from caloscale.report.figures import Figure
from caloscale.report.verdict import signed, verdict_markdown, verdict_rows, with_uncertainty
from caloscale.spec.budget import PricedMachine

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
STAGES = [
    {"stage": "simulate", "outcome": "succeeded", "seconds": 100.0, "coreSeconds": 200.0, "peakMemoryMib": 512.0},
    {"stage": "train", "outcome": "failed", "seconds": 50.0, "coreSeconds": 90.0, "error": "no"},
]
PROVENANCE = {
    "caloscale": "1.2.3",
    "document": "model:\n  preset: compact\n",
    "data": {"files": [{"name": "showers-00000.h5", "sha256": "ab" * 32, "showers": 100}]},
    "versions": {},
}
SUMMARY = {
    "data": {"source": "geant4", "showers": 500, "validationShowers": 240},
    "simulation": {"showersPerSecond": 10.0, "coreSecondsPerShower": 0.2},
    "train": {"steps": 1234, "epochs": 12, "showersPerSecond": 250.0},
    "generate": {"showersPerSecond": 987.0, "speedupOverGeant4": 98.7},
}
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Collects links to elsewhere, and refuses tags that do not close."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.tags: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href", "data", "srcset")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def figure(tmp_path: Path) -> Figure:
    (tmp_path / "one.png").write_bytes(PNG)
    return Figure("one", "A figure <b>", "A caption & more", tmp_path / "one.png", tmp_path / "one.pdf")


def render(**changes) -> str:
    arguments = {
        "title": "run <demo>",
        "evaluation": None,
        "figures": [],
        "provenance": PROVENANCE,
        "training": {},
        "cost": None,
        "stages": [],
        "summary": SUMMARY,
    }
    return render_report(**(arguments | changes))


def test_the_page_needs_nothing_else(distorted, figure):
    html = render(evaluation=distorted, figures=[figure], training={"loss": [3.0, 2.0]}, stages=STAGES)
    page = Page(html)
    assert len(page.sources) == 3  # the figure, the training curves, the times
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert "script" not in page.tags and "@import" not in html and "url(" not in html
    assert base64.b64encode(PNG).decode() in html


def test_the_verdict_comes_first(distorted, figure):
    html = render(evaluation=distorted, figures=[figure])
    first = html.index("<table>")
    assert html.index(">Verdict<") < first < html.index("<img")
    table = html[first : html.index("</table>", first)]
    assert table.count("<tr>") >= 1 + len(distorted.observables)
    assert "not kept (limit 2)" in table and "kept (limit 50)" in table
    assert "held back" in html and distorted.reasons[0] in html
    assert distorted.fpd.reason in html


def test_all_text_is_escaped(figure):
    html = render(figures=[figure], failure="<script>alert(1)</script>")
    assert "<script" not in html and "&lt;script&gt;alert(1)" in html
    assert "run &lt;demo&gt;" in html and "A figure &lt;b&gt;" in html
    Page(html)


def test_a_run_that_failed_is_told(figure):
    html = render(failure="the loss is not finite\n  remedy: lower train.learningRate", stages=STAGES, summary=None)
    page = Page(html)
    assert "This run failed" in html and "remedy: lower train.learningRate" in html
    assert "not judged" in html and "There is no bill" in html
    assert "failed" in html and page.tags.count("img") == 1


@pytest.mark.parametrize("where", ["summary", "stage", "evaluation"])
def test_parametrised_showers_are_called_so(where, degenerate):
    changes = {
        "summary": {"summary": {"data": {"source": "parametrised", "showers": 1, "validationShowers": 1}}},
        "stage": {"stages": [{"stage": "simulate", "seconds": 1.0, "figures": {"source": "parametrised"}}]},
        "evaluation": {"evaluation": degenerate},
    }[where]
    assert "Parametrised showers." in render(**changes)
    assert "Parametrised showers." not in render()


def test_cost_and_speed_are_shown(perfect):
    uses = [StageUse(name=s["stage"], seconds=s["seconds"], core_seconds=s["coreSeconds"]) for s in STAGES]
    machine = PricedMachine(machine_type="n1-standard-2", region="us-central1", purchase="on-demand")
    cost = price_run(uses, machine, load_prices(), dt.date(2026, 6, 1), generated_per_second=987.0)
    html = render(evaluation=perfect.evaluation, cost=cost.model_dump(mode="json", by_alias=True), stages=STAGES)
    Page(html)
    for text in ("n1-standard-2", "us-central1", f"{cost.usd:.4f}", f"{cost.usd_per_hour:.4f}", "2026-06-01"):
        assert text in html
    for text in ("10 showers/s", "250 showers/s", "987 showers/s", "98.7 times", "1234"):
        assert text in html
    assert "ab" * 32 in html and "preset: compact" in html


def test_what_is_absent_is_called_absent(degenerate):
    html = render(evaluation=degenerate)
    Page(html)
    assert "absent" in html and ">None<" not in html and "nan " not in html


@pytest.mark.parametrize(
    ("value", "uncertainty", "text"),
    [
        (0.01234, 0.0045, "0.0123 ± 0.0045"),
        (26.8, 0.17, "26.80 ± 0.17"),
        (123.4, 56.7, "123 ± 57"),
        (6.34e-5, 2.4e-6, "(6.34 ± 0.24)e-5"),
        (0.5, None, "0.5"),
        (0.5, 0.0, "0.5"),
        (None, 0.1, "absent"),
    ],
)
def test_uncertainties_have_two_digits(value, uncertainty, text):
    assert with_uncertainty(value, uncertainty) == text


def test_the_verdict_as_markdown(distorted, perfect):
    text = verdict_markdown(distorted)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(distorted.observables)
    assert {line.count("|") for line in lines} == {10}
    assert text.startswith("**Held back: samplingFraction")
    assert verdict_markdown(perfect.evaluation).startswith("**Released: the document sets no gates")
    rows = {row.name: row for row in verdict_rows(distorted)}
    assert rows["samplingFraction"].passed is False and rows["hits"].passed is None
    assert signed(-1.26) == "-1.3 sigma"
