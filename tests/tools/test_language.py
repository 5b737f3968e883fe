"""Words that pages and messages do not use are found, in text only."""

from pathlib import Path

import pytest

from tools import language


def test_words_are_found_in_text_and_some_in_pages_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "ROOT", tmp_path)
    (page := tmp_path / "page.md").write_text("A run\nTold so, it goes on; `--live` is an option.\nAll but for one.\n")
    shown = [one.split(";")[0] for one in language.problems(page)]
    assert shown == ["page.md:2: 'Told'", "page.md:2: 'goes on'", "page.md:3: 'but for'"]
    (module := tmp_path / "module.py").write_text('told = {"verb": 1}\nprint("but for one", "no such verb")\n')
    assert list(language.problems(module)) == ["module.py:2: 'verb'; write: command"]
