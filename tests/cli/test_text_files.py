"""Lines in and out: strict UTF-8, outputs that appear complete or not at all."""

import gzip
import io

import pytest

from keras_transformer.cli.text_files import check_output, open_output, read_lines
from keras_transformer.errors import UserError


@pytest.fixture
def standard_input(monkeypatch):
    def feed(content):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))

    return feed


def test_lines_of_standard_input(standard_input):
    """They end at line feeds only; a byte order mark is lost, as in files."""
    standard_input("\ufeffa\u2028b\r\n\nlast".encode())
    assert list(read_lines(None)) == ["a\u2028b", "", "last"]
    standard_input(b"good\nb\xffd\n")
    with pytest.raises(UserError, match=r"standard input, line 2: .*byte 2 is 0xff"):
        list(read_lines("-"))


def test_an_endless_line_is_refused_before_it_fills_the_memory(monkeypatch):
    with open("/dev/zero", encoding="utf-8") as zeros:
        monkeypatch.setattr("sys.stdin", zeros)
        with pytest.raises(UserError, match="standard input, line 1: the line is longer than"):
            next(read_lines(None))


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


def test_an_output_must_not_replace_a_file_of_the_model(tmp_path):
    (tmp_path / "source_tokenizer.model").touch()
    with pytest.raises(UserError, match="must not be a file that the command also reads"):
        check_output(str(tmp_path / "source_tokenizer.model"), [str(tmp_path)])
    check_output(str(tmp_path / "answers.json"), [str(tmp_path)])


@pytest.mark.parametrize("path", [None, "-", "/dev/stdout"])
def test_standard_output_is_not_replaced(path, capsys):
    """By the name of its device, the file that a shell redirects to would be."""
    print("before")
    check_output(path)
    with open_output(path) as file:
        file.write("after\n")
    assert capsys.readouterr().out == "before\nafter\n"
