"""caloscale study, as its user sees it."""

import json

import pytest


@pytest.mark.integration
def test_the_cost_study_prints_its_statements_with_dates(command, tmp_path):
    shown = command("study", "cost", "-o", tmp_path / "out", "--as-of", "2026-11-21")
    assert shown.code == 0
    assert "2.46 in europe-west4" in shown.out and "prices of 2022-06-01 seen on 2022-01-01" in shown.out
    assert "report: " in shown.out and (tmp_path / "out" / "study.md").is_file()
    again = command("study", "cost", "-o", tmp_path / "out", "--as-of", "2026-11-21", "--json")
    assert json.loads(again.out) == json.loads((tmp_path / "out" / "study.json").read_text())
