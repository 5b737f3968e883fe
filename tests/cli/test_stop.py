"""caloscale stop, as its user sees it; on a real API server in tests/control_plane/operator."""

import pytest

from tests.client.server import Server, seen


@pytest.mark.parametrize("options", [(), ("--resume",)])
def test_a_finished_run_is_not_said_to_resume(command, monkeypatch, options):
    monkeypatch.setattr("caloscale.connection.connect", lambda context: Server(seen("Failed", "UserError")))
    done = command("stop", "gan", "-n", "physics", *options)
    assert done.code == 2 and not done.out and "gan has failed" in done.err and "another --name" in done.err


def test_what_has_stopped_resumes(command, monkeypatch):
    monkeypatch.setattr("caloscale.connection.connect", lambda context: Server(seen("Suspended")))
    done = command("stop", "gan", "-n", "physics", "--resume")
    assert done.code == 0 and done.out == "gan resumes\n"
