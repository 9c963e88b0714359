"""Every row of the ledger of the paper says what shows it, and every test that it names exists."""

import re

from tests.docs.page_blocks import PAGES, ROOT

TEXT = PAGES["paper.md"].read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in TEXT.partition("## Training cost")[0].splitlines()
    if line.startswith("| ") and not line.startswith("| paper |")
]


def test_every_row_has_a_test_a_script_or_commands():
    assert len(ROWS) > 45
    shown_by = re.compile(r"`(tests|benchmarks|examples)/|#what-a-cpu-cannot-run|`keras-tr")
    for row in ROWS:
        assert len(row) == 3 and all(row) and shown_by.search(row[2]), row


def test_every_test_that_is_named_exists():
    for path, test in re.findall(r"`((?:tests|benchmarks|examples)/[^`:]+)(?:::(\w+))?`", TEXT):
        assert (ROOT / path).is_file(), path
        assert not test or f"def {test}(" in (ROOT / path).read_text("utf-8"), (path, test)
