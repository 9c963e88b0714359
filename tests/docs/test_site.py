"""`mkdocs build --strict` makes a site of every page, without broken links."""

import html.parser
import os
import posixpath
import subprocess
import sys
import urllib.parse

import pytest

from tests.docs.public_names import ROOT

pytestmark = pytest.mark.slow


class Links(html.parser.HTMLParser):
    """The links of a page, to what it loads too, and its anchors."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.anchors |= {attrs.get("id"), attrs.get("name")} - {None}
        self.links += [attrs[name] for name in ("href", "src") if attrs.get(name)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder with the site."""
    for library in ("latex2mathml", "material", "mkdocs", "mkdocs_jupyter", "mkdocstrings"):
        pytest.importorskip(library, reason=f"needs {library}: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """The links and anchors of each page of the site, by the path of the page."""
    return {
        path.relative_to(site).as_posix(): Links(path.read_text("utf-8"))
        for path in site.rglob("*.html")
        if path.name != "404.html"  # Its links begin at the root of the server.
    }


def test_every_page_is_there(pages):
    for path in [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]:
        name = path.relative_to(ROOT / "docs").with_suffix("")
        name = name.parent if name.name in ("README", "index") else name
        assert (name / "index.html").as_posix() in pages
    assert {"get_started/index.html", "changelog/index.html", "examples/index.html"} <= {*pages}


def test_no_link_leads_nowhere(site, pages):
    for name, page in pages.items():
        for link in page.links:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), url.path))
            target = name if not url.path else target
            if (site / target).is_dir():
                target = posixpath.normpath(posixpath.join(target, "index.html"))
            assert (site / target).is_file(), (name, link)
            if url.fragment and target in pages:
                anchor = urllib.parse.unquote(url.fragment)
                assert anchor in pages[target].anchors, (name, link)
