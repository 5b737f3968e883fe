"""The site: built strictly from docs/, complete, and readable without a network."""

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from caloscale import errors
from caloscale.cli.main import app

ROOT = Path(__file__).resolve().parents[2]


def build(configuration: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(configuration), "-d", str(target)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", target)
    assert done.returncode == 0, done.stderr[-3000:]
    return target


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("[there](absent.md)", "absent.md"),
        ("[there](index.md#absent)", "#absent"),
        ("![it](absent.png)", "absent.png"),
        ("[there](../outside.md)", "../outside.md"),
    ],
)
def test_a_broken_link_fails(page: str, complaint: str, tmp_path: Path) -> None:
    done = build_small(tmp_path, {"index.md": f"# Start\n\n{page}\n"})
    assert done.returncode != 0 and complaint in done.stderr


def test_a_page_without_an_entry_in_the_navigation_fails(tmp_path: Path) -> None:
    done = build_small(tmp_path, {"index.md": "# Start\n", "orphan.md": "# Alone\n"})
    assert done.returncode != 0 and "orphan.md" in done.stderr
    assert build_small(tmp_path, {"index.md": "# Start\n"}).returncode == 0


def build_small(folder: Path, pages: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A site of these pages by the rules of ours."""
    (docs := folder / "docs").mkdir(exist_ok=True)
    for old in docs.iterdir():
        old.unlink()
    for name, text in pages.items():
        (docs / name).write_text(text)
    rules = {"INHERIT": str(ROOT / "mkdocs.yml"), "docs_dir": str(docs), "plugins": [], "hooks": []}
    (folder / "mkdocs.yml").write_text(json.dumps(rules | {"nav": ["index.md"], "theme": {"name": "mkdocs"}}))
    return build(folder / "mkdocs.yml", folder / "built")


def test_a_page_is_read_in_ten_minutes() -> None:
    tables = ("benchmarks.md", "papers.md")  # which nobody reads from the first row to the last
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.name not in tables]
    assert len(pages) > 30
    assert [f"{page.name}: {n} words" for page in pages if (n := len(page.read_text().split())) > 2300] == []


@pytest.mark.integration
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    source, link = r"<(?:script|img|iframe)\b[^>]*\bsrc", r'<link\b(?! rel="?canonical)[^>]*\bhref'
    loaded = re.compile(rf'(?:{source}|{link})="?(?:https?:)?//')
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    assert [page.name for page in pages if loaded.search(page.read_text())] == []


@pytest.mark.integration
def test_the_map_of_the_site_has_its_pages_and_a_missing_page_has_links_from_the_root(site: Path) -> None:
    places = re.findall(r"<loc>http://127.0.0.1:8000/(.*?)</loc>", (site / "sitemap.xml").read_text())
    pages = {page.relative_to(site).as_posix() for page in site.rglob("*.html")} - {"404.html"}
    assert {page for page in pages if not page.startswith("gallery/")} == set(places)
    assert "data:image/png" in (site / "tutorials/own-arrays.html").read_text()
    assert "unreleased" in (site / "changelog.html").read_text() and (site / "contributing.html").is_file()
    assert re.findall(r'(?:href|src)="?(?!/|#|https?:|data:|mailto:)[^">\s]+', (site / "404.html").read_text()) == []


@pytest.mark.integration
def test_the_reference_has_every_key_command_and_error(site: Path) -> None:
    reference = {page.stem: page.read_text() for page in (site / "reference").glob("*.html")}
    schema = json.loads((ROOT / "docs/schema/run.schema.json").read_text())
    keys = [key for block in (schema, *schema["$defs"].values()) for key in block["properties"]]
    assert len(keys) > 100
    assert [key for key in keys if f"<code>{key}</code>" not in reference["configuration"]] == []
    commands = [name for name, c in typer.main.get_group(app).commands.items() if not c.hidden]
    assert [name for name in commands if f'id="caloscale-{name}"' not in reference["commands"]] == []
    shown = html.unescape(re.sub(r"<[^>]+>", "", reference["commands"]))
    assert "caloscale plan --preset variable-angle --generate" in shown
    classes = {name for name in vars(errors) if name.endswith("Error")} - {"CaloscaleError", "InvalidValueError"}
    assert [name for name in classes if f"<code>{name}</code>" not in reference["errors"]] == []
    bill = json.loads((ROOT / "docs/schema/summary.schema.json").read_text())["$defs"]["Bill"]["properties"]
    assert [key for key in bill if f"<code>{key}</code>" not in reference["results"]] == []
    assert "&amp;lt;" not in reference["commands"] and "&lt;run&gt;/dataset" in reference["commands"]
    assert "caloscale_runs" in reference["metrics"] and "observedGeneration" in reference["custom-resource"]
