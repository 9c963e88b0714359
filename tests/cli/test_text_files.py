"""Lines in and out: strict UTF-8, outputs that appear complete or not at all."""

import errno
import gzip
import io
import os

import pytest

from keras_transformer.cli.text_files import check_output, chunks, open_output, read_lines
from keras_transformer.errors import UserError


@pytest.fixture
def standard_input(monkeypatch):
    def feed(content):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))

    return feed


@pytest.mark.parametrize(
    "content, lines",
    [
        # Lines end at line feeds only.
        ("a\u2028b\r\n\nlast", ["a\u2028b", "", "last"]),
        # The byte order mark is lost, as in files.
        ("\ufeffa\n\ufeffb\n", ["a", "\ufeffb"]),
    ],
)
def test_lines_of_standard_input(standard_input, content, lines):
    standard_input(content.encode())
    assert list(read_lines(None)) == lines


def test_invalid_utf8_on_standard_input_is_named_with_its_line(standard_input):
    standard_input(b"good\nb\xffd\n")
    with pytest.raises(UserError, match=r"standard input, line 2: .* 0xff at column 2"):
        list(read_lines("-"))


def test_chunks_of_long_lines_are_small():
    long = "x" * 3_000_000
    assert [len(chunk) for chunk in chunks([long] * 5, 1000)] == [2, 2, 1]
    assert [len(chunk) for chunk in chunks([(long, long), ("a", "b"), ("c", "d")], 8)] == [1, 2]


def test_an_endless_line_is_refused_before_it_fills_the_memory(monkeypatch):
    with open("/dev/zero", encoding="utf-8") as zeros:
        monkeypatch.setattr("sys.stdin", zeros)
        with pytest.raises(UserError, match="standard input, line 1: the line is longer than"):
            next(read_lines(None))


def test_an_output_that_is_a_link_stays_one_and_the_file_is_written(tmp_path):
    """The file appears when it is complete."""
    path = tmp_path / "out.txt"
    (tmp_path / "link").symlink_to(path.name)
    for before, content in ((None, "one"), ("one", "two")):
        with open_output(str(tmp_path / "link")) as file:
            file.write(content)
            assert (path.read_text() if path.exists() else None) == before
        assert path.read_text() == content
    assert (tmp_path / "link").is_symlink()


def test_an_output_whose_name_ends_in_gz_is_packed(tmp_path):
    path = tmp_path / "out.txt.gz"
    with open_output(str(path)) as file:
        file.write("ä\u2028\n")
        file.flush()
        file.write("b\n")
    packed = path.read_bytes()
    assert gzip.decompress(packed).decode() == "ä\u2028\nb\n"
    assert packed[10:18] == b"out.txt\0"  # the name that `gunzip -N` gives it
    assert list(read_lines(str(path))) == ["ä\u2028", "b"]


def test_a_failure_leaves_the_old_output_and_nothing_beside_it(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("old\n")
    with pytest.raises(UserError), open_output(str(path)) as file:
        file.write("half\n")
        raise UserError("stop")
    assert path.read_text() == "old\n"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_the_error_of_a_full_disk_has_the_name_that_the_user_gave(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError) as caught, open_output("out.txt"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.filename == "out.txt"


@pytest.mark.parametrize("name", ["config.json", "source_tokenizer.model", "shortlist.npz"])
def test_an_output_must_not_replace_a_file_of_the_model(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(UserError, match="must not be a file that the command also reads"):
        check_output(str(tmp_path / name), [str(tmp_path)])
    check_output(str(tmp_path / "answers.json"), [str(tmp_path)])
