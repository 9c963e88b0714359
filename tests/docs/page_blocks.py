"""Code blocks of README.md and docs/*.md, with the reasons of those that are not run there.

`<!-- not run: REASON -->` above a block says why it cannot run, `<!-- run by: PATH -->` which test
runs it instead.
"""

import dataclasses
import pathlib
import re
import shlex

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = {path.name: path for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
_BLOCK = re.compile(
    r"(?:^<!-- (not run|run by): (.+?) -->\n)?^```(python|bash)\n(.*?)^```$", re.M | re.S
)


@dataclasses.dataclass(frozen=True)
class Block:
    """One block: its language and code, and why or where else it is run."""

    language: str
    code: str
    reason: str | None
    run_by: str | None

    @property
    def is_run(self):
        return self.reason is None and self.run_by is None

    def commands(self):
        """The words of every command of a bash block, without assignments and redirections."""
        for line in self.code.replace("\\\n", " ").splitlines():
            for command in re.split(r"\s(?:\||&&)\s", line):
                try:
                    words = shlex.split(re.split(r"\s[<>]", command)[0], comments=True)
                except ValueError:  # A quotation of several lines, as curl gets them.
                    continue
                while words and re.match(r"[A-Z_]+=", words[0]):
                    del words[0]
                if words:
                    yield words


def blocks_of(page):
    """The blocks of a page in order, without examples that have a prompt."""
    text = PAGES[page].read_text("utf-8")
    found = []
    for kind, said, language, code in _BLOCK.findall(text):
        if not code.startswith(">>> "):
            reason, run_by = said if kind == "not run" else None, said if kind == "run by" else None
            found.append(Block(language, code, reason, run_by))
    return found


def prompts_of(page):
    """The examples of a page that have a prompt."""
    return re.findall(r"^```python\n(>>> .*?)^```", PAGES[page].read_text("utf-8"), re.M | re.S)
