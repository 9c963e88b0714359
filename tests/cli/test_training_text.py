"""The text of `train`: columns in any order, pairs that are held out, and what is wrong with it."""

import itertools
import re

import pytest

from keras_transformer.cli.translation_data import text_warnings
from keras_transformer.data import PairsCorpus
from keras_transformer.data.mixed_corpus import hold_out
from keras_transformer.models import processor
from keras_transformer.training import TrainingResult, TrainingSettings

WORDS = {
    "the {} {} is {}": ["red", "blue", "green"] + ["house", "dog", "tree"] + ["big", "old", "man"],
    "{1} {0} ist {2}": ["rotes", "blau", "man"] + ["haus", "hund", "baum"] + ["red", "alt", "am"],
}
ENGLISH, GERMAN = (
    [form.format(*three) for three in itertools.product(words[:3], words[3:6], words[6:])]
    for form, words in WORDS.items()
)
PAIRS = list(zip(ENGLISH, GERMAN, strict=True))


@pytest.fixture
def trained(monkeypatch):
    """The arguments of calls of `training.train`, which trains nothing here."""
    from keras_transformer import training

    calls = []

    def train(output, train_corpus, valid_corpus, settings, **options):
        calls.append((list(train_corpus), valid_corpus and list(valid_corpus)))
        return TrainingResult("translation", None, 9.9, 1, 1.0, 1.0, None, [])

    monkeypatch.setattr(training, "train", train)
    return calls


def tsv(pairs, header="English\tid\tGerman"):
    return [header, *(f"{source}\t7\t{target}" for source, target in pairs)]


@pytest.mark.parametrize(
    "columns, header, swap", [("German,English", True, True), ("1,3", False, False)]
)
def test_columns_of_a_tsv_file_come_in_any_order(
    succeed, trained, text, tmp_path, columns, header, swap
):
    path = text("pairs.tsv", tsv(PAIRS)[not header :])
    valid = text("valid.tsv", tsv([("one", "eins")])[not header :])
    succeed("train", "--tsv", path, "--valid-tsv", valid, "--columns", columns, "--output",
            tmp_path / "out")  # fmt: skip
    [(train_pairs, valid_pairs)] = trained
    assert train_pairs == ([pair[::-1] for pair in PAIRS] if swap else PAIRS)
    assert valid_pairs == [("eins", "one") if swap else ("one", "eins")]


@pytest.mark.parametrize("is_fast, resumes, more", [
    (True, False, []), (True, True, []), (True, False, ["--mixed-precision"]), (False, False, []),
])  # fmt: skip
def test_a_faster_precision_is_proposed(
    is_fast, resumes, more, succeed, trained, text, tmp_path, monkeypatch
):
    monkeypatch.setattr(processor, "has_fast_bfloat16", lambda: is_fast)
    lines = [f"{source}\t{target}" for source, target in PAIRS]
    if resumes:
        (tmp_path / "out").mkdir()
        TrainingSettings().save(tmp_path / "out", {})
    outcome = succeed(
        "train", "--tsv", text("pairs.tsv", lines), "--output", tmp_path / "out", *more
    )
    is_proposed = is_fast and not more and not resumes
    assert ("consider --mixed-precision" in outcome.errors) == is_proposed


def test_without_validation_text_pairs_are_held_out_and_said(succeed, trained, text, tmp_path):
    lines = [f"{source}\t{target}" for source, target in PAIRS]
    data = ["--tsv", text("pairs.tsv", lines)]
    outcome = succeed("train", *data, "--output", tmp_path / "out")
    [(train_pairs, valid_pairs)] = trained
    assert sorted([*train_pairs, *valid_pairs]) == sorted(PAIRS) and len(valid_pairs) == 1
    assert "1 of 27 pairs are held out and kept" in outcome.errors
    assert "\nBLEU 9.90 is poor: see docs/troubleshooting.md" in outcome.errors


def test_a_training_ends_with_the_next_commands(succeed, trained, text, tmp_path):
    source, target = text("train.en", ENGLISH), text("train.de", GERMAN)
    data = ["--source", source, "--target", target, "--output", tmp_path / "en-de"]
    held_out = succeed("train", *data).errors.splitlines()[-4:]
    [(_, [(sentence, _)])] = trained
    out, model = tmp_path / "en-de", f"--model {tmp_path / 'en-de'}"
    end = [f"export {model} --output saved_models/en-de/1", f"serve {out}"]
    # Without the program, which is `python -m keras_transformer.cli` if it is not on the PATH.
    command = re.compile("(translate|evaluate|export|serve) (--model|/).*")
    assert [command.search(line)[0] for line in held_out] == [
        f"translate {model} '{sentence}'",
        f"evaluate {model} --source {out}/valid.source --reference {out}/valid.target",
        *end,
    ]
    data += ["--valid-source", source, "--valid-target", target]
    files = f"--source {source} --reference {target}\n"
    assert f"evaluate {model} {files}" in succeed("train", *data).errors
    data += ["--target-language", "es", "--bleu-lowercase"]
    outcome = succeed("train", *data)
    assert f"evaluate --target-language es --lowercase {model} {files}" in outcome.errors


def warnings_of(train_pairs, valid_pairs, adapts=False):
    return list(text_warnings(PairsCorpus(train_pairs), PairsCorpus(valid_pairs), adapts))


def test_leaks_and_copies_are_counted():
    valid = [(f" {PAIRS[0][0]} ", "another"), PAIRS[1], ("the blue", "blaues")]
    warnings = warnings_of([*PAIRS, ("Tom", "Tom"), ("", "")], valid)
    assert warnings.pop(0).startswith("29 training pairs are few")
    assert warnings.pop(0) == "The first pairs with an empty side are 29 (from 1)."
    assert warnings[0].startswith("1 of 29 training pairs (3.4%) have the same text on both sides")
    assert warnings[1].startswith("2 of 3 validation sources (66.7%) are in the training text too")
    assert len(warnings) == 2


def test_pairs_have_their_numbers_in_the_file_where_others_are_held_out():
    pairs = [(f"source {number}", f"target {number}") for number in range(1, 301)]
    pairs[249] = ("source 250", "")
    train, valid = hold_out(PairsCorpus(pairs))
    assert pairs[249] in train and any(pair in pairs[:249] for pair in valid)
    assert "with an empty side are 250 (from 1)" in " ".join(text_warnings(train, valid, True))


def test_exchanged_languages_are_noticed_with_words_in_common():
    """`man` and `red` are words of both languages here."""
    train_pairs, valid_pairs = PAIRS[::2], PAIRS[1::2]
    assert warnings_of(train_pairs, valid_pairs, adapts=True) == []
    exchanged = [pair[::-1] for pair in valid_pairs]
    [warning] = warnings_of(train_pairs, exchanged, adapts=True)
    # 4 of 13 pairs have `man` as the color, 4 of 13 `red` at the end: 8 of 52 words.
    assert "exchanged: 100% of its source words are in the training targets, 15%" in warning
