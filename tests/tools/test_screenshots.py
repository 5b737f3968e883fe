"""The site in headless Chromium: pages fit a phone and a desktop screen, and the search finds a page."""

import base64
import functools
import html
import http.server
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from caloscale.report.blocks import Page, Section, Text
from caloscale.report.html import render
from tests.tools.conftest import Browser
from tests.tools.test_site import ROOT, build

PAGES = (
    "index.html",
    "gallery.html",
    "tutorials/first-generator.html",
    "tutorials/thirty-two-gpus.html",
    "reference/configuration.html",
)
WIDTHS = (400, 1300)
WIDER = """[...document.querySelectorAll('.md-content *')].filter(element => {
  if (element.getBoundingClientRect().right <= innerWidth + 1) return false
  for (let outer = element.parentElement; !outer.matches('.md-content'); outer = outer.parentElement)
    if (getComputedStyle(outer).overflowX != 'visible') return false
  return true
}).map(element => element.textContent.slice(0, 60))"""
"""Elements that are cut off: wider than the window, in no box that scrolls."""
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The site, served."""
    site = tmp_path_factory.mktemp("site")
    build(ROOT / "mkdocs.yml", site).check_returncode()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    handler.func.log_message = lambda *_: None  # type: ignore[attr-defined]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_the_screen(browser: Browser, address: str, page: str, width: int) -> None:
    import numpy as np
    from PIL import Image

    browser.open(f"{address}/{page}", width)
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value(WIDER) == []
    shot = browser.call("Page.captureScreenshot", format="png")["data"]
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(shot))).convert("L"))
    assert pixels.shape == (900, width) and pixels.std() > 10
    assert browser.value("parseFloat(getComputedStyle(document.querySelector('.md-typeset p')).fontSize)") >= 14


def test_an_element_that_is_cut_off_is_found(browser: Browser, address: str) -> None:
    browser.open(f"{address}/index.html", 400)
    browser.value("document.querySelector('.md-content p').style.width = '700px'")
    assert browser.value(WIDER) != []


def test_the_search_finds_a_page(browser: Browser, address: str) -> None:
    browser.open(f"{address}/index.html", 1300)
    browser.wait("document.querySelector('.md-search').getBoundingClientRect().width > 0")
    browser.value("document.querySelector('.md-search__input').focus()")
    browser.call("Input.insertText", text="interruptions")
    browser.wait("document.querySelector('.md-search-result__item a')?.href.includes('.html')")


def test_the_contents_of_a_report_work_in_the_frame_of_kubeflow(browser: Browser, tmp_path: Path) -> None:
    """A sandboxed frame without an address of its own, as the UI of Kubeflow Pipelines shows pages of a run."""
    page = render(Page("run", "", (), tuple(Section(f"Part {n}", (Text("text " * 3000),)) for n in range(3))))
    click = """<script>
        addEventListener("load", () => { document.querySelector('a[href="#part-2"]').click();
        setTimeout(() => parent.postMessage([document.URL, scrollY], "*"), 300) })</script>"""
    frame = html.escape(page.replace("</body>", f"{click}</body>"), quote=True)
    outer = f"""<body><script>addEventListener("message", event => {{ document.title = JSON.stringify(event.data) }})
        </script><iframe sandbox="allow-scripts" width="600" height="400" srcdoc="{frame}"></iframe></body>"""
    (tmp_path / "ui.html").write_text(outer, encoding="utf-8")
    browser.open(f"file://{tmp_path / 'ui.html'}", 800)
    browser.wait("document.title")
    url, scrolled = json.loads(browser.value("document.title"))
    assert url == "about:srcdoc" and scrolled > 400
