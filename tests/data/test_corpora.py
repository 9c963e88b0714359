"""A corpus yields its pairs in order, again and again, and says what is wrong with files."""

import gzip

import pytest

from keras_transformer.data import Corpus, PairsCorpus, ParallelTextCorpus, TsvCorpus
from keras_transformer.errors import UserError

PAIRS = [("one", "eins"), ("", "leer"), ("two", "zwei")]


def _write(path, lines):
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.name.endswith(".gz") else content)
    return path


@pytest.fixture(params=["memory", "text", "gz", "tsv", "header"])
def corpus(request, tmp_path):
    if request.param == "memory":
        return PairsCorpus(PAIRS)
    if request.param == "tsv":
        rows = [f"{target}\tignored\t{source}\tmore" for source, target in PAIRS]
        return TsvCorpus(_write(tmp_path / "pairs.tsv", rows), source_column=2, target_column=0)
    if request.param == "header":
        rows = ["de\tid\ten", *(f"{target}\t7\t{source}" for source, target in PAIRS)]
        return TsvCorpus(_write(tmp_path / "pairs.tsv.gz", rows), "en", "de")
    ending = ".gz" if request.param == "gz" else ""
    return ParallelTextCorpus(
        _write(tmp_path / f"train.en{ending}", [source for source, _ in PAIRS]),
        _write(tmp_path / f"train.de{ending}", [target for _, target in PAIRS]),
    )


def test_every_corpus_can_be_read_again_and_knows_its_length(corpus):
    assert isinstance(corpus, Corpus)
    assert len(corpus) == 3
    assert list(corpus) == list(corpus) == PAIRS


@pytest.mark.parametrize("numbers, message", [
    ((3, 2), "has 3, .* has 2"),
    ((2, 5), "has 2, .* has 5"),
    ((0, 2), "a.txt' is empty"),
    ((2, 0), "b.txt' is empty"),
    ((0, 0), "a.txt' and .*b.txt' are empty"),
])  # fmt: skip
def test_parallel_files_must_be_parallel(tmp_path, numbers, message):
    paths = [
        _write(tmp_path / name, ["line"] * number)
        for name, number in zip(("a.txt", "b.txt"), numbers, strict=True)
    ]
    with pytest.raises(UserError, match=message):
        list(ParallelTextCorpus(*paths))
    with pytest.raises(UserError, match=message):
        len(ParallelTextCorpus(*paths))


def test_a_missing_file_is_noticed_at_once(tmp_path):
    there = _write(tmp_path / "there.txt", ["line"])
    for paths in ((there, tmp_path / "no.txt"), (tmp_path / "no.txt", there)):
        with pytest.raises(UserError, match=r"not found: .*no\.txt"):
            ParallelTextCorpus(*paths)
    with pytest.raises(UserError, match=r"not found: .*no\.tsv"):
        TsvCorpus(tmp_path / "no.tsv")


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
    with pytest.raises(
        UserError, match=r"no column 'englsh' \(did you mean english\?\); .*numbers"
    ):
        len(TsvCorpus(path, "englsh", "german"))
    assert list(TsvCorpus(path, 0, "german")) == [("one", "eins")]


def test_no_pairs_at_all_is_an_error():
    with pytest.raises(UserError, match="no sentence pairs"):
        PairsCorpus([])
