"""Words that the pages, docstrings and messages do not use, with what is written instead: `make lint` runs it."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INSTEAD = {
    r"verbs?": "command",
    r"told|tells?": "given, stated, shows",
    r"(?:goes|go|going) on": "continues, resumes",
    r"houses?|doors?": "the name of the part",
    r"held back": "held out",
    r"talks?|talked": "sends, exchanges",
    r"speaks?|spoke": "sends, connects to",
}
IN_PAGES = {
    r"in turn": "one after the other",
    r"as one likes": "the number or the limit",
    r"(?:be|been) had": "is available",
    r"whoever": "the person or process",
    r"nobody (?:has|said|knows|measured)": "a passive sentence",
    r"(?:goes|go) before": "overrides",
    r"but for": "except",
    r"on its way": "the state",
    r"once more|begun again": "again, restarted",
    r"(?<!--)lives?|lived": "is, is stored, runs",
    r"one's own": "your own",
    r"says so": "states it",
    r"stands? (?:for|in|beside|there)": "is, means, is shown",
    r"gets? on": "progresses",
    r"anew": "again",
    r"beside": "next to, with, in addition to",
    r"(?:is|are|be) left": "remains, the others",
}
"""Words that only the pages do not use."""
OWN = ("language.py", "test_language.py")
"""Files that hold the words themselves."""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line number and text: the lines of a page; the docstrings and messages of a module (strings with a space)."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from enumerate(content.splitlines(), 1)
        return
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def problems(path: Path) -> Iterator[str]:
    """The words of a file that are replaced by others."""
    words = INSTEAD | (IN_PAGES if path.suffix == ".md" else {})
    for line, text in texts(path):
        for word, instead in words.items():
            for found in re.findall(rf"\b(?:{word})\b", text, re.IGNORECASE):
                yield f"{path.relative_to(ROOT)}:{line}: {found!r}; write: {instead}"


def main() -> None:
    """Print the problems; the exit code is 1 when there are any."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    modules = [
        path
        for folder in ("src", "tools", "tests", "components", "pipelines")
        for path in (ROOT / folder).rglob("*.py")
    ]
    found = [one for path in [*pages, *modules] if path.name not in OWN for one in problems(path)]
    print("\n".join(found) or "language: no word of the list")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
