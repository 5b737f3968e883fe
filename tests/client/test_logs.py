"""Logs of workers whose streams break, on an API server that a test chooses."""

from collections.abc import Iterator
from typing import Any

import pytest
from urllib3.exceptions import MaxRetryError, ProtocolError

from caloscale.client import logs as module
from caloscale.client.logs import logs
from caloscale.errors import ClusterError
from tests.client.server import Server, refusal, seen

POD: dict[str, Any] = {
    "metadata": {"name": "gan-1-worker-0", "namespace": "physics", "uid": "p"},
    "spec": {"containers": [{"name": "tensorflow"}]},
}
BROKEN = ProtocolError("connection broken")


def line(second: float, text: str, end: str = "\n") -> bytes:
    return f"2026-11-27T10:00:{second:012.9f}Z {text}{end}".encode()


ONE, TWO, SAME, THREE = line(1, "one"), line(2, "two"), line(2.000000001, "in a second"), line(3, "three")


class Logs(Server):
    """Gives a stream each time that it is asked; the run has finished, and its pod, once there is none but the last."""

    def __init__(self, *streams: list[bytes | Exception], gone: bool = False) -> None:
        super().__init__(None)
        self.streams, self.gone, self.tails = list(streams), gone, list[int | None]()

    def get(self, *_: object) -> dict[str, Any]:
        return seen("Running" if len(self.streams) > 1 else "Succeeded")

    def each(self, *_: object, **__: object) -> Iterator[dict[str, Any]]:
        ended = len(self.streams) == 1
        return iter(() if ended and self.gone else [{**POD, "status": {"phase": "Succeeded" if ended else "Running"}}])

    def log(self, *_: object, tail: int | None, since: str, **__: object) -> Iterator[bytes]:
        assert not (tail and since)
        self.tails.append(tail)
        for each in self.streams.pop(0) if len(self.streams) > 1 else self.streams[0]:
            if isinstance(each, Exception):
                raise each
            yield each


@pytest.mark.parametrize(
    ("streams", "printed", "tails"),
    [
        ([[ONE, TWO, SAME, BROKEN], [TWO, SAME, THREE], [THREE]], ["one", "two", "in a second", "three"], [9, None]),
        ([[ONE, TWO, line(2.000000001, "in a", ""), BROKEN], [TWO, SAME]], ["one", "two", "in a second"], [9, None]),
        ([[ONE, TWO], [TWO, line(2.5, "no end", "")]], ["one", "two", "no end"], [9, None]),
        ([[BROKEN], [ONE]], ["one"], [9, None]),  # the worker had written nothing before
        ([[], [ONE]], ["one"], [9, None]),
        ([[], []], [], [0, 0]),  # lines that were there already stay out
        ([[BROKEN], []], [], [0, 0]),
        ([[line(1, "one", "")], [ONE]], ["one"], [1, 1]),  # nor do the lines before an unfinished one come
        ([[MaxRetryError(None, "/", None)], [ONE]], ["one"], [9, 9]),  # type: ignore[arg-type]
        ([[ONE, refusal(500, "it starts")], [ONE, TWO], [TWO]], ["one", "(no log: it starts)", "two"], [9, None]),
        (
            [[ONE, b"failed to watch\n"], [ONE, TWO, b"failed to watch\n"], [TWO]],
            ["one", "failed to watch", "two"],
            [9, None],
        ),
    ],
)
def test_a_stream_that_breaks_is_resumed(
    streams: list[list[bytes | Exception]], printed: list[str], tails: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the log of a worker was missing, with exit code 0."""
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    server: Any = Logs(*streams)
    found = list(logs(server, "physics", "gan", follow=True, tail=tails[0]))
    assert found == [f"gan-1-worker-0 | {text}" for text in printed] and server.tails[:2] == tails


@pytest.mark.parametrize("follow", [True, False])
def test_lines_that_are_missing_are_no_success(follow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    server: Any = Logs([ONE, BROKEN], [ONE, BROKEN], gone=follow) if follow else Logs([ONE, BROKEN])
    printed = logs(server, "physics", "gan", follow=follow)
    assert next(printed) == "gan-1-worker-0 | one"
    with pytest.raises(ClusterError, match=r"may be missing: gan-1-worker-0: .*broken") as problem:
        next(printed)
    assert problem.value.exit_code == 4
