"""caloscale stop and logs, as their user sees them; on a real API server in tests/control_plane/operator."""

import pytest

from tests.client.server import Server, seen


@pytest.mark.parametrize("options", [(), ("--resume",)])
def test_a_finished_run_is_not_said_to_resume(command, monkeypatch, options):
    monkeypatch.setattr("caloscale.connection.connect", lambda context: Server(seen("Failed", "UserError")))
    done = command("stop", "gan", "-n", "physics", *options)
    assert done.code == 2 and not done.out and "gan has failed" in done.err and "another --name" in done.err


STOPPED = {"cluster": {"suspend": True}}


@pytest.mark.parametrize(
    ("run", "says"),
    [(seen("Suspended"), "resumes"), (seen("Running", spec=STOPPED), "resumes"), (seen("Running"), "was not stopped")],
)
def test_what_has_stopped_resumes(command, monkeypatch, run, says):
    monkeypatch.setattr("caloscale.connection.connect", lambda context: Server(run))
    done = command("stop", "gan", "-n", "physics", "--resume")
    assert done.code == 0 and done.out == f"gan {says}\n"


def test_logs_of_a_run_that_waits_say_why_there_are_none(command, monkeypatch):
    server = Server(seen("Waiting", "no capacity"))
    server.each = lambda *_, **__: iter(())
    monkeypatch.setattr("caloscale.connection.connect", lambda context: server)
    done = command("logs", "gan", "-n", "physics")
    assert (done.code, done.out) == (0, "") and "gan: Waiting (no capacity)" in done.err
