"""The text of `train`: columns in any order, pairs that are held out, and what is wrong with it."""

import itertools
import re

import pytest

from keras_transformer.data import PairsCorpus
from keras_transformer.training import TrainingResult
from keras_transformer.translation.text_warnings import text_warnings

WORDS = {
    "the {} {} is {}": ["red", "blue", "green"] + ["house", "dog", "tree"] + ["big", "old", "man"],
    "{1} {0} ist {2}": ["rotes", "blau", "man"] + ["haus", "hund", "baum"] + ["red", "alt", "am"],
}
ENGLISH, GERMAN = (
    [form.format(*three) for three in itertools.product(words[:3], words[3:6], words[6:])]
    for form, words in WORDS.items()
)
PAIRS = list(zip(ENGLISH, GERMAN, strict=True))


class Calls(list):
    score: float | None = None


@pytest.fixture
def trained(monkeypatch):
    """The arguments of calls of `training.train`, which trains nothing here."""
    from keras_transformer import training

    calls = Calls()

    def train(output, train_corpus, valid_corpus, settings, **options):
        calls.append((list(train_corpus), valid_corpus and list(valid_corpus)))
        return TrainingResult("translation", None, calls.score, 1, 1.0, 1.0, None, [])

    monkeypatch.setattr(training, "train", train)
    return calls


def tsv(pairs, header="English\tid\tGerman"):
    return [header, *(f"{source}\t7\t{target}" for source, target in pairs)]


@pytest.mark.parametrize(
    "columns, header, swap", [("English,German", True, False), ("German,English", True, True),
                              ("1,3", False, False), ("3,1", False, True)]
)  # fmt: skip
def test_columns_of_a_tsv_file_come_in_any_order(
    succeed, trained, text, tmp_path, columns, header, swap
):
    path = text("pairs.tsv", tsv(PAIRS)[not header :])
    valid = text("valid.tsv", tsv([("one", "eins")])[not header :])
    succeed("train", "--tsv", path, "--valid-tsv", valid, "--columns", columns, "--output",
            tmp_path / "out")  # fmt: skip
    [(train_pairs, valid_pairs)] = trained
    assert train_pairs == [pair[::-1] for pair in PAIRS] if swap else PAIRS
    assert valid_pairs == [("eins", "one") if swap else ("one", "eins")]


@pytest.mark.parametrize("kind", ["tsv", "files"])
def test_without_validation_text_pairs_are_held_out_and_said(
    succeed, trained, text, tmp_path, kind
):
    lines = [f"{source}\t{target}" for source, target in PAIRS]
    data = ["--tsv", text("pairs.tsv", lines)]
    if kind == "files":
        data = ["--source", text("train.en", ENGLISH), "--target", text("train.de", GERMAN)]
    outcome = succeed("train", *data, "--output", tmp_path / "out")
    [(train_pairs, valid_pairs)] = trained
    assert sorted([*train_pairs, *valid_pairs]) == sorted(PAIRS) and len(valid_pairs) == 1
    assert "1 of 27 pairs are held out and kept" in outcome.errors


def test_a_training_ends_with_the_next_commands(succeed, trained, text, tmp_path):
    source, target = text("train.en", ENGLISH), text("train.de", GERMAN)
    data = ["--source", source, "--target", target, "--output", tmp_path / "en-de"]
    held_out = succeed("train", *data).errors.splitlines()[-4:]
    [(_, [(sentence, _)])] = trained
    out, model = tmp_path / "en-de", f"--model {tmp_path / 'en-de'}"
    end = [f"export {model} --output saved_models/en-de", f"serve {out}"]
    # Without the program, which is `python -m keras_transformer.cli` if it is not on the PATH.
    command = re.compile("(translate|evaluate|export|serve) (--model|/).*")
    assert [command.search(line)[0] for line in held_out] == [
        f"translate {model} '{sentence}'",
        f"evaluate {model} --source {out}/valid.source --reference {out}/valid.target",
        *end,
    ]
    data[-1] = tmp_path / "out [sm]*"  # TensorFlow would take the name for a pattern.
    assert "--output 'saved_models/out _sm]_'" in succeed("train", *data).errors
    data[-1] = tmp_path / "en-de"
    data += ["--valid-source", source, "--valid-target", target]
    assert (
        f"evaluate {model} --source {source} --reference {target}\n"
        in succeed("train", *data).errors
    )


@pytest.mark.parametrize("first, warns", [
    (("English", "German"), True), (("src", "tgt_de"), True), (("en", "de"), True),
    (("Go.", "Geh."), False), (("the dog", "Hund"), False), (("", "x"), False),
])  # fmt: skip
def test_a_first_line_of_names_is_said(succeed, trained, text, tmp_path, first, warns):
    path = text("pairs.tsv", ["\t".join(pair) for pair in (first, *PAIRS)])
    warning = f"The first pair, {first}, looks like names of columns: remove the line, or"
    errors = succeed("train", "--tsv", path, "--output", tmp_path / "out").errors
    assert errors.count(warning) == warns
    if warns:
        named = ["--columns", ",".join(first)]
        errors = succeed("train", "--tsv", path, *named, "--output", tmp_path / "out").errors
        assert warning not in errors
    assert not any("names of columns" in text for text in warnings_of([("a", "b")] * 3, PAIRS))


def test_the_first_pairs_with_an_empty_side_are_named(succeed, trained, text, tmp_path):
    lines = ["\t".join(pair) for pair in PAIRS]
    for number in (2, 9, 20, 21):
        lines.insert(number - 1, ["a\t ", ""][number % 2])
    path = text("pairs.tsv", lines)
    for more in ([], ["--valid-tsv", text("v.tsv", lines[2:3])]):
        errors = succeed("train", "--tsv", path, *more, "--output", tmp_path / "out").errors
        assert "The first pairs with an empty side are 2, 9, 20 (from 1).\n" in errors


@pytest.mark.parametrize("score, warns", [(9.9, True), (10.0, False), (None, False)])
def test_a_poor_score_is_said(succeed, trained, text, tmp_path, score, warns):
    trained.score = score
    path = text("pairs.tsv", [f"{source}\t{target}" for source, target in PAIRS])
    errors = succeed("train", "--tsv", path, "--output", tmp_path / "out").errors
    assert ("\nBLEU 9.90 is poor: see docs/troubleshooting.md" in errors) == warns


def warnings_of(train_pairs, valid_pairs, adapts=False):
    return list(text_warnings(PairsCorpus(train_pairs), PairsCorpus(valid_pairs), adapts))


def test_few_pairs_are_warned_of_unless_a_model_is_adapted():
    [warning] = warnings_of(PAIRS[1:], PAIRS[:1])
    assert "26 training pairs are few" in warning
    assert warnings_of(PAIRS[1:], PAIRS[:1], adapts=True) == []
    many = [(f"one {n}", f"eins {n}") for n in range(10_000)]
    assert warnings_of(many, [("one", "eins")]) == []


def test_leaks_and_copies_are_counted():
    valid = [(f" {PAIRS[0][0]} ", "another"), PAIRS[1], ("the blue", "blaues")]
    warnings = warnings_of([*PAIRS, ("Tom", "Tom"), ("", "")], valid, adapts=True)
    assert warnings.pop(0) == "The first pairs with an empty side are 29 (from 1)."
    assert warnings[0].startswith("1 of 29 training pairs (3.4%) have the same text on both sides")
    assert warnings[1].startswith("2 of 3 validation sources (66.7%) are in the training text too")
    assert len(warnings) == 2


def test_exchanged_languages_are_noticed_with_words_in_common():
    """`man` and `red` are words of both languages here."""
    train_pairs, valid_pairs = PAIRS[::2], PAIRS[1::2]
    assert warnings_of(train_pairs, valid_pairs, adapts=True) == []
    exchanged = [pair[::-1] for pair in valid_pairs]
    [warning] = warnings_of(train_pairs, exchanged, adapts=True)
    # 4 of 13 pairs have `man` as the color, 4 of 13 `red` at the end: 8 of 52 words.
    assert "exchanged: 100% of its source words are in the training targets, 15%" in warning


@pytest.mark.slow
@pytest.mark.tensorflow_only("`train` reads its data with tf.data")
def test_held_out_pairs_are_kept_and_another_text_is_refused(run, succeed, text, tmp_path):
    lines = [f"{source}\t{target}" for source, target in PAIRS]
    sizes = ["--num-encoder-layers", 1, "--num-decoder-layers", 1, "--d-model", 8, "--num-heads", 2,
             "--intermediate-dim", 8, "--vocab-size", 290, "--beam-size", 1]  # fmt: skip
    out = tmp_path / "out"
    options = ["--columns", "2,1", *sizes, "--output", out, "--max-steps"]
    succeed("train", "--tsv", text("pairs.tsv", lines), *options, 1)
    files = [out / "valid.source", out / "valid.target"]
    kept = [path.read_text() for path in files]
    assert tuple(content.removesuffix("\n") for content in kept) in [pair[::-1] for pair in PAIRS]
    succeed("evaluate", "--model", out, "--source", files[0], "--reference", files[1])
    assert (
        "Resuming after step 1"
        in succeed("train", "--tsv", tmp_path / "pairs.tsv", *options, 2).errors
    )
    other = text("other.tsv", [line.upper() for line in lines])
    outcome = run("train", "--tsv", other, *options, 3)
    assert outcome.status == 2 and "error: The training text differs from that of" in outcome.errors
    assert "`--start-from` adapts" in outcome.errors
    assert [path.read_text() for path in files] == kept
