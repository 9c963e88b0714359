"""Text is read as strict UTF-8 lines, from plain text or gzip."""

import gzip

import pytest

from keras_transformer.data.lines import open_text
from keras_transformer.errors import UserError


@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz"])
def test_open_text_ends_lines_at_newlines_only(tmp_path, name):
    content = "\ufefffirst\r\nwith\u2028separators\x0c\x85 in it\n\nlast, no end".encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    lines = ["first", "with\u2028separators\x0c\x85 in it", "", "last, no end"]
    assert list(open_text(path)) == lines
    assert list(open_text(str(path))) == lines


@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz"])
def test_a_line_that_may_not_fit_into_memory_is_refused(tmp_path, name):
    path = tmp_path / name
    opener = gzip.open if name.endswith(".gz") else open
    with opener(path, "wb") as file:
        file.write(b"fine\n" + b"a" * (2**22 - 1) + b"\n" + b"a" * 2**22 + b"\n")
    lines = open_text(path)
    assert [len(next(lines)) for _ in range(2)] == [4, 2**22 - 1]
    with pytest.raises(UserError, match=r"text\.txt.*', line 3: .* longer than 4,194,304 bytes"):
        next(lines)


@pytest.mark.parametrize("name, content, message", [
    ("latin.txt", b"fine\nalso fine\ncaf\xe9\n",
     r"latin\.txt', line 3: .*not valid UTF-8.*0xe9 at column 4"),
    ("cut.gz", gzip.compress(b"a line\n" * 5000, mtime=0)[:-20], "not a complete gzip file"),
    ("other.gz", b"no gzip at all", "not a complete gzip file"),
    ("nothing.txt", None, r"File not found: '.*nothing\.txt'"),
    ("", None, "is a folder"),
])  # fmt: skip
def test_text_that_cannot_be_read_is_a_user_error(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(open_text(path))
