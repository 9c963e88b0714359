"""Hooks of `mkdocs`: the Markdown pages are written for a forge, where their links are files.

On the site, README.md and other pages outside docs/ are pages too, every other file that is linked
becomes a page with its text, and links to folders are plain text. The tables of the settings of
`train` are made here from their fields.
"""

import pathlib
import posixpath
import re

from latex2mathml.converter import convert
from mkdocs.structure.files import File

import keras_transformer.cli.settings as train_settings

ROOT = pathlib.Path(__file__).parents[1]
PAGES = {"README.md": "get_started.md", "CHANGELOG.md": "changelog.md"}
PAGES |= {"CONTRIBUTING.md": "how_to_contribute.md", "examples/README.md": "examples.md"}
# Pages that are the only ones of their tab have no list of pages beside them.
HIDDEN = {"index.md": "[navigation, toc]", "get_started.md": "[navigation]"}
CODE_PAGE = "---\nsearch: {{exclude: true}}\n---\n# {}\n\n````{}\n{}\n````\n"


def on_files(files, config):
    """Adds the pages outside docs/ and writes the Markdown of all pages for the site."""
    uris = {f"docs/{uri}": uri for uri in files.src_uris if not uri.endswith(".py")} | PAGES
    for path, uri in PAGES.items():
        content = (ROOT / path).read_text("utf-8")
        files.append(File.generated(config, uri, content=content))
    for path, uri in uris.items():
        if uri.endswith(".md"):
            _write_for_site(path, files.src_uris[uri], uris, files, config)
    for uri, hidden in HIDDEN.items():
        file = files.src_uris[uri]
        file.content_string = f"---\nhide: {hidden}\n---\n{file.content_string}"
    return files


def settings_tables():
    """Returns the tables of the settings of `train` in Markdown."""
    lines = []
    for table, (heading, options) in train_settings.all_tables().items():
        lines += [f"## {table}", "", f"{heading[0].upper()}{heading[1:]}.", ""]
        lines += ["| option | default | meaning |", "|---|---|---|"]
        for option in options.values():
            default = f"`{option.default}`" if option.default is not None else option.unset or ""
            meaning = f"{option.text[0].upper()}{option.text[1:]}"
            lines.append(f"| `{option.flag}` | {default} | {meaning} |")
        lines.append("")
    return "\n".join(lines)


def _write_for_site(source, file, uris, files, config):
    def link_on_site(match):
        text, target, anchor = match.groups(default="")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not (ROOT / path).is_file():
            return text if (ROOT / path).is_dir() else match[0]
        uri = uris.get(path, f"source/{path}.md")
        if uri not in files.src_uris:
            code = CODE_PAGE.format(path, path.rpartition(".")[2], (ROOT / path).read_text("utf-8"))
            files.append(File.generated(config, uri, content=code))
        return f"[{text}]({posixpath.relpath(uri, posixpath.dirname(file.src_uri))}{anchor})"

    text = file.content_string.replace("```python\n>>> ", "```pycon\n>>> ")
    # In the code of a table, forges need `\|` where Python-Markdown needs `|`.
    text = re.sub(r"`[^`\n]*`", lambda code: code[0].replace("\\|", "|"), text)
    if "<!-- settings -->" in text:
        text = text.replace("<!-- settings -->", settings_tables())
    file.content_string = re.sub(r"\[([^]]*)\]\(([^):#]+)(#[^)]*)?\)", link_on_site, text)


def on_page_content(html, page, config, files):
    """Lets long names and commands break, and writes links and formulas of the notebook."""
    html = re.sub(r"<code>(?=[^<]{36,}</code>)", '<code class="long">', html)
    name = re.compile(r"<code[^>]*>(tests/|test_)[^<]+")
    html = name.sub(lambda m: re.sub(r"([/_]|::)", r"\1<wbr>", m[0]), html)
    if page.file.src_uri.endswith(".ipynb"):  # mkdocs-jupyter leaves them as they are.
        html = open_elsewhere(html, config["repo_url"], page.file.src_uri)
        link = re.compile(r'(?<=href=")([\w/]+\.md)')
        html = link.sub(lambda m: files.src_uris[m[1]].url_relative_to(page.file), html)
        html = re.sub(r"(?<=<p>)\$\$(.+?)\$\$", lambda m: convert(m[1], display="block"), html)
    return html


def open_elsewhere(html, repository, uri):
    """Completes the links of a notebook to Colab and Kaggle, if the repository is on GitHub."""
    _, host, name = (repository or "").strip("/").partition("https://github.com/")
    if not host:
        return html
    blob = f"{name}/blob/main/docs/{uri}"
    colab, kaggle = "https://colab.research.google.com/github/", "https://www.kaggle.com/"
    html = html.replace(f'href="{colab}"', f'href="{colab}{blob}"')
    return html.replace(
        f'href="{kaggle}code"', f'href="{kaggle}kernels/welcome?src=https://github.com/{blob}"'
    )


def on_post_build(config):
    """Removes the sitemap of a site without an address, which has no pages in it."""
    if not config["site_url"]:
        for path in pathlib.Path(config["site_dir"]).glob("sitemap.xml*"):
            path.unlink()
