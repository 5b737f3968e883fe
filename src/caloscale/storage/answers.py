"""What the answer of a server of objects means: refused, gone, changed by another, or worth another try."""

from typing import NamedTuple

from caloscale.errors import ChangedError, StorageError, UnreachableError

RETRY_SECONDS = 60.0
"""For how long a request that fails temporarily (429, 5xx, a lost connection) is repeated."""
TIMEOUT_SECONDS = 30.0
"""For how long one answer of the server is awaited."""
_SERVER_ERROR = 500


class Answer(NamedTuple):
    """What an answer of the server means."""

    problem: str
    remedy: str
    kind: type[StorageError] = StorageError

    def error(self, uri: str, host: str, said: object) -> StorageError:
        """The error about an object; ``said``: what the server itself says."""
        bucket = uri.partition("://")[2].partition("/")[0]
        problem, remedy = (text.format(bucket=bucket, host=host) for text in (self.problem, self.remedy))
        return self.kind(f"{problem}: {said}", file=uri, remedy=remedy)


_REFUSED = Answer("the server refuses the request", "correct the address; the same request is refused again")
PASSING = Answer("the server {host} does not serve it", "check the network, or try again later", UnreachableError)
CHANGED = Answer("another process has changed it meanwhile", "let one process alone write here", ChangedError)
_ANSWERS = {
    404: Answer("there is no such bucket or object", "check the name {bucket!r}, or create it"),
    408: PASSING,
    410: PASSING,  # an upload in parts that has run out: it begins again
    412: CHANGED,
    429: PASSING,
    501: _REFUSED,
}
"""Status codes of answers; others from 500 on are passing, those below refusals, which a repetition meets again."""


def answer(code: int | None, access: Answer) -> Answer:
    """What a status code means; None: no answer. access: what 401 and 403 mean."""
    if code is None:
        return PASSING
    if code in (401, 403):
        return access
    return _ANSWERS.get(code, PASSING if code >= _SERVER_ERROR else _REFUSED)
