"""`mkdocs build --strict` makes a site of every page, with a search and without broken links."""

import html.parser
import json
import os
import posixpath
import subprocess
import sys
import urllib.parse

import pytest

from tests.docs.public_names import ROOT, load_script, public_members

pytestmark = pytest.mark.slow
NEEDED = ("latex2mathml", "material", "mkdocs", "mkdocs_jupyter", "mkdocstrings")


class Links(html.parser.HTMLParser):
    """The links of a page, what it loads, and its anchors."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loaded, self.anchors, self.description = [], [], set(), None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.anchors |= {attrs.get("id"), attrs.get("name")} - {None}
        if tag == "meta" and attrs.get("name") == "description":
            self.description = attrs["content"]
        if tag == "a" and attrs.get("href"):
            self.links.append(attrs["href"])
        elif tag in ("img", "link", "script"):
            self.loaded += [attrs[name] for name in ("href", "src") if attrs.get(name)]


def build(folder, **environment):
    for library in NEEDED:
        pytest.importorskip(library, reason=f"needs {library}: pip install '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", **environment}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder with the site."""
    return build(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def pages(site):
    """The links and anchors of each page of the site, by the path of the page."""
    return {
        path.relative_to(site).as_posix(): Links(path.read_text("utf-8"))
        for path in site.rglob("*.html")
        if path.name != "404.html"  # Its links begin at the root of the server.
    }


def test_every_page_is_there(pages):
    written = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]
    assert len(written) > 20
    for path in written:
        name = path.relative_to(ROOT / "docs").with_suffix("")
        name = name.parent if name.name in ("README", "index") else name
        assert (name / "index.html").as_posix() in pages
    assert {"index.html", "changelog/index.html", "examples/index.html"} <= {*pages}


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


def test_every_page_has_the_whole_description(pages):
    assert {page.description for page in pages.values()} == {
        "The Transformer of “Attention Is All You Need” as Keras layers, and as a command."
    }


def test_a_sitemap_lists_the_pages_if_the_address_of_the_site_is_known(site, tmp_path, pages):
    assert not list(site.glob("sitemap*"))
    folder = build(tmp_path, SITE_URL="https://example.org/docs/")
    listed = (folder / "sitemap.xml").read_text("utf-8")
    assert "<loc>https://example.org/docs/api/layers/</loc>" in listed
    assert listed.count("<loc>") == len(pages)


def test_no_page_loads_anything_from_another_host(pages):
    loaded = {link for page in pages.values() for link in page.loaded}
    assert not [link for link in loaded if urllib.parse.urlsplit(link).netloc]


def test_the_search_knows_the_api(site):
    entries = json.loads((site / "search/search_index.json").read_text("utf-8"))["docs"]
    found = {entry["location"] for entry in entries}
    for name in public_members():
        package, _, member = name.rpartition(".")
        assert f"api/{package}/#keras_transformer.{package}.{member}" in found


def test_the_notebook_has_its_pictures_and_formulas(site, pages):
    notebook = (ROOT / "docs/tutorial.ipynb").read_text("utf-8")
    stored = notebook.count('"image/png"') + notebook.count("data:image/png;base64,")
    loaded = pages["tutorial/index.html"].loaded
    assert sum(link.startswith("data:image/png") for link in loaded) == stored > 15
    text = (site / "tutorial/index.html").read_text("utf-8")
    assert text.count("<math") > 5 and "\\frac" not in text and "<p>$$" not in text


def test_the_notebook_opens_elsewhere_if_its_repository_is_known(site):
    hooks = load_script("docs/site_hooks.py")
    page = (site / "tutorial/index.html").read_text("utf-8")
    assert hooks.open_elsewhere(page, "", "tutorial.ipynb") == page
    html = hooks.open_elsewhere(page, "https://github.com/someone/name/", "tutorial.ipynb")
    blob = "someone/name/blob/main/docs/tutorial.ipynb"
    assert f'"https://colab.research.google.com/github/{blob}"' in html
    assert f'"https://www.kaggle.com/kernels/welcome?src=https://github.com/{blob}"' in html
