"""`mkdocs build --strict` makes a site of every page, with a search and without broken links."""

import html.parser
import json
import os
import posixpath
import subprocess
import sys
import urllib.parse

import pytest

from tests.docs.public_names import ROOT, public_members

pytestmark = pytest.mark.slow


class Links(html.parser.HTMLParser):
    """The links of a page, what it loads, and its anchors."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loaded, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.anchors |= {attrs.get("id"), attrs.get("name")} - {None}
        if tag == "a" and attrs.get("href"):
            self.links.append(attrs["href"])
        elif tag in ("img", "link", "script"):
            self.loaded += [attrs[name] for name in ("href", "src") if attrs.get(name)]


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
        for link in page.links + page.loaded:
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


def test_no_page_loads_anything_from_another_host(pages):
    loaded = {link for page in pages.values() for link in page.loaded}
    assert not [link for link in loaded if urllib.parse.urlsplit(link).netloc]


def test_the_search_knows_the_api(site):
    entries = json.loads((site / "search/search_index.json").read_text("utf-8"))["docs"]
    found = {entry["location"] for entry in entries}
    for name in public_members():
        package, _, member = name.rpartition(".")
        assert f"api/{package}/#keras_transformer.{package}.{member}" in found


def test_generated_parts_are_there(site, pages):
    """Pictures and formulas of the notebook, and the tables of settings."""
    assert (
        sum(link.startswith("data:image/png") for link in pages["tutorial/index.html"].loaded) > 15
    )
    tutorial = (site / "tutorial/index.html").read_text("utf-8")
    assert tutorial.count("<math") > 5 and "\\frac" not in tutorial and "<p>$$" not in tutorial
    assert "--beam-size" in (site / "api/settings/index.html").read_text("utf-8")
