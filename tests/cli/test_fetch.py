"""caloscale fetch: whose report a fetched run has."""

from unittest.mock import Mock

import pytest

from caloscale.client.runs import manifest_of
from tests.client import test_usage as use
from tests.client.server import Server
from tests.client.test_step import billed


@pytest.mark.parametrize("first", [True, False])
def test_a_run_that_another_has_continued_does_not_make_the_others_report_that_of_a_failure(
    command, monkeypatch, tmp_path, first
):
    """A pipeline run reached its budget, and one with `resume` trained to the end in its folder."""
    spec = manifest_of(use.run_of("cluster.volumeClaim=runs", "cluster.workspace=/workspace/a"), "gan", "physics")[
        "spec"
    ]
    runs = [{**billed("Failed", "Budget", day), "spec": spec} for day in (21, 22)]
    monkeypatch.setattr("caloscale.stages.solving.report_any", report := Mock())
    for raw in (*runs, runs[0 if first else 1]):
        monkeypatch.setattr("caloscale.connection.connect", lambda context, raw=raw: Server(raw))
        report.reset_mock()
        done = command("fetch", "gan", "-n", "physics", "--to", tmp_path)
        assert done.code == 0, done.err
        (tmp_path / "stages").mkdir(exist_ok=True)
        (tmp_path / "status.json").unlink()
    assert report.called is not first


def test_a_finished_run_is_brought_also_where_no_report_can_be_made(command, monkeypatch, tmp_path):
    """The extra cluster is enough for its model and its bill."""
    spec = manifest_of(use.run_of("cluster.volumeClaim=runs"), "gan", "physics")["spec"]
    monkeypatch.setattr("caloscale.connection.connect", lambda _: Server({**billed("Succeeded"), "spec": spec}))
    absent = Mock(side_effect=ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib"))
    monkeypatch.setattr("caloscale.installation.import_module", absent)
    (tmp_path / "stages").mkdir()
    done = command("fetch", "gan", "-n", "physics", "--to", tmp_path)
    assert done.code == 0 and (tmp_path / "usage.json").is_file()
    assert "a report with the bill: the package matplotlib is not installed" in done.err and "train,cpu" in done.err
