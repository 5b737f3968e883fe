"""Where the smoke test cannot run it fails, and the other tests that need its cluster are left out."""

from pathlib import Path

import pytest

from tests.smoke import conftest
from tools.images import ImageError

MAKEFILE = Path(__file__).resolve().parents[2] / "Makefile"


def test_the_smoke_test_does_not_end_well_without_having_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_images(_: object) -> None:
        raise ImageError("no image operator", remedy="make images")

    monkeypatch.setattr(conftest, "archives", no_images)
    monkeypatch.delenv("CONTEXT", raising=False)
    monkeypatch.delenv("SMOKE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="make smoke does it all"):
        conftest._cluster()
    monkeypatch.setenv("SMOKE", "1")
    with pytest.raises(ImageError, match="no image operator"):
        conftest._cluster()


def test_its_targets_say_that_it_is_wanted() -> None:
    text = MAKEFILE.read_text(encoding="utf-8")
    started = [line for line in text.splitlines() if "$(BIN)/pytest tests/smoke" in line]
    assert len(started) == 2 and all("SMOKE=1 " in line for line in started)
