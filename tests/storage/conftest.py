from pathlib import Path

import pytest


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with files of several kinds."""
    folder = tmp_path / "tree"
    for name in ("manifest.json", "large.h5", "deeper/b.h5", "deeper/notes.txt", "deeper/empty.h5"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"" if "empty" in name else name.encode() * 10)
    (folder / "large.h5").write_bytes(bytes(range(256)) * 50_000)
    return folder
