"""Lines are strict UTF-8; a corpus yields its pairs again and again, and names what is wrong."""

import gzip

import pytest

from keras_transformer.data import Corpus, PairsCorpus, ParallelTextCorpus, TsvCorpus
from keras_transformer.data.corpora import open_text
from keras_transformer.errors import UserError

PAIRS = [("one", "eins"), ("", "leer"), ("two", "zwei")]


def _write(path, lines):
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.name.endswith(".gz") else content)
    return path


@pytest.fixture(params=["memory", "gz", "header"])
def corpus(request, tmp_path):
    if request.param == "memory":
        return PairsCorpus(PAIRS)
    if request.param == "header":
        rows = ["de\tid\ten", *(f"{target}\t7\t{source}" for source, target in PAIRS)]
        return TsvCorpus(_write(tmp_path / "pairs.tsv.gz", rows), "en", "de")
    return ParallelTextCorpus(
        _write(tmp_path / "train.en.gz", [source for source, _ in PAIRS]),
        _write(tmp_path / "train.de.gz", [target for _, target in PAIRS]),
    )


def test_every_corpus_can_be_read_again_and_knows_its_length(corpus):
    assert isinstance(corpus, Corpus)
    assert len(corpus) == 3
    assert list(corpus) == list(corpus) == PAIRS


@pytest.mark.parametrize("numbers, message", [
    ((3, 2), "has 3, .* has 2"), ((0, 2), "a.txt' is empty"), ((0, 0), "b.txt' are empty"),
])  # fmt: skip
def test_parallel_files_must_be_parallel(tmp_path, numbers, message):
    paths = [
        _write(tmp_path / name, ["line"] * number)
        for name, number in zip(("a.txt", "b.txt"), numbers, strict=True)
    ]
    with pytest.raises(UserError, match=message):
        list(ParallelTextCorpus(*paths))


def test_tsv_lines_without_the_columns_are_errors(tmp_path):
    path = _write(tmp_path / "pairs.tsv", ["one\teins", "", "two zwei"])
    pairs = iter(TsvCorpus(path))
    assert [next(pairs), next(pairs)] == [("one", "eins"), ("", "")], "a blank line keeps its place"
    with pytest.raises(UserError, match=r"pairs\.tsv', line 3: expected at least 2 columns .* 1\."):
        next(pairs)
    with pytest.raises(UserError, match="is empty"):
        list(TsvCorpus(_write(tmp_path / "empty.tsv", [])))
    for columns in ((0, 0), (-1, 0)):
        with pytest.raises(ValueError, match="Received: source_column="):
            TsvCorpus(path, *columns)


def test_a_column_that_the_header_lacks_is_an_error(tmp_path):
    path = _write(tmp_path / "pairs.tsv", ["english\tgerman", "one\teins"])
    with pytest.raises(UserError, match=r"no column 'englsh' \(did you mean english\?\)"):
        len(TsvCorpus(path, "englsh", "german"))


def test_no_pairs_at_all_is_an_error():
    with pytest.raises(UserError, match="no sentence pairs"):
        PairsCorpus([])


@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz"])
def test_open_text_ends_lines_at_newlines_only(tmp_path, name):
    content = "\ufefffirst\r\nwith\u2028separators\x0c\x85 in it\n\nlast, no end".encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    lines = ["first", "with\u2028separators\x0c\x85 in it", "", "last, no end"]
    assert list(open_text(path)) == lines


def test_a_line_that_may_not_fit_into_memory_is_refused(tmp_path):
    path = tmp_path / "text.txt.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"fine\n" + b"a" * (2**22 - 1) + b"\n" + b"a" * 2**22 + b"\n")
    lines = open_text(path)
    assert [len(next(lines)) for _ in range(2)] == [4, 2**22 - 1]
    with pytest.raises(UserError, match=r"text\.txt.*', line 3: .* longer than 4,194,304 bytes"):
        next(lines)


@pytest.mark.parametrize("name, content, message", [
    ("latin.txt", b"fine\nalso fine\ncaf\xe9\n",
     r"latin\.txt', line 3: .*not valid UTF-8.*byte 4 is 0xe9"),
    ("cut.gz", gzip.compress(b"a line\n" * 5000, mtime=0)[:-20], "not a complete gzip file"),
    ("nothing.txt", None, r"File not found: '.*nothing\.txt'"),
    ("", None, "is a folder"),
])  # fmt: skip
def test_text_that_cannot_be_read_is_a_user_error(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(open_text(path))
