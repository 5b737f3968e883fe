"""The profile of a step as bars, as a table and in the report."""

from __future__ import annotations

import pytest

from caloscale.report import draw_run_figures, render_report
from caloscale.report.figures_profile import PARTS, profile_rows, shares_of, step_profile

PROFILE = {
    "preset": "compact",
    "precision": "float32",
    "device": "CPU",
    "batch": 32,
    "steps": 8,
    "secondsPerStep": 0.25,
    "shares": [
        {"phase": "fakes", "part": "forward", "share": 0.05},
        {"phase": "discriminatorReal", "part": "forward", "share": 0.1},
        {"phase": "discriminatorReal", "part": "backPropagation", "share": 0.2},
        {"phase": "generator", "part": "forward", "share": 0.15},
        {"phase": "generator", "part": "backPropagation", "share": 0.25},
        {"phase": "generator", "part": "optimizer", "share": 0.05},
        {"phase": "rest", "part": "forward", "share": 0.02},
    ],
    "inputWait": 0.08,
    "idle": 0.1,
    "matrixShare": 0.6,
    "gflopPerStep": 9.5,
    "gflops": 38.0,
    "matrixGflops": 77.2,
    "peakGflops": 187.0,
    "limit": "compute",
    "statement": "Limited by computing & <more>.",
}


def test_the_shares_are_those_of_the_profile():
    shares = shares_of(PROFILE)
    assert sum(sum(parts.values()) for parts in shares.values()) == pytest.approx(1)
    assert shares["generator"]["backPropagation"] == 0.25
    assert shares["no operation"]["inputWait"] == 0.08


def test_the_table_adds_up():
    columns, rows = profile_rows(PROFILE)
    assert len(columns) == len(PARTS) + 2 and all(len(row) == len(columns) for row in rows)
    whole = rows[-1]
    assert whole[-1] == "100.0"
    for column in range(1, len(columns)):
        values = [float(row[column] or 0) for row in rows[:-1]]
        assert sum(values) == pytest.approx(float(whole[column] or 0))


def test_bars_reach_from_0_to_their_sums():
    with step_profile(PROFILE) as figure:
        figure.canvas.draw()
        (ax,) = figure.axes
        ends: dict[float, float] = {}
        for bar in ax.patches:
            at = round(bar.get_y() + bar.get_height() / 2)
            ends[at] = max(ends.get(at, 0), bar.get_x() + bar.get_width())
        titles = {label.get_text(): round(y) for y, label in zip(ax.get_yticks(), ax.get_yticklabels())}
    assert ends[titles["the whole step"]] == pytest.approx(100)
    assert ends[titles["discriminator, real"]] == pytest.approx(30)
    # Phases that took no time have no bar.
    assert "discriminator, generated" not in titles


def test_the_report_shows_it(tmp_path):
    drawn = draw_run_figures(tmp_path, profile=PROFILE)
    assert [figure.name for figure in drawn] == ["step_profile"]
    assert drawn[0].png.stat().st_size > 0 and drawn[0].pdf.stat().st_size > 0
    html = render_report(
        title="run",
        evaluation=None,
        figures=drawn,
        provenance={},
        training={},
        cost=None,
        stages=[],
        profile=PROFILE,
    )
    assert "Where the time of a step goes" in html and "Limited by computing &amp; &lt;more&gt;." in html
    assert html.count("<img") == 1 and "187 GFLOP/s" in html and ">back-propagation<" in html


def test_a_run_without_profile_says_nothing_of_it():
    html = render_report(
        title="run", evaluation=None, figures=[], provenance={}, training={}, cost=None, stages=[], profile=None
    )
    assert "Where the time of a step goes" not in html
