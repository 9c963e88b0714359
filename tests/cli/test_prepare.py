"""`prepare` and `train --prepared`: the model of the text, mistakes in one line."""

import re

import pytest

from keras_transformer.data import PreparedCorpus
from keras_transformer.data.tokenizer_pair import load_tokenizer_file
from keras_transformer.models import Transformer, TransformerConfig, get_preset
from tests.tiny_translator import sentence, tiny_tokenizer
from tests.translation_set import store_translation_set

LINES = [sentence(2 + seed % 6, seed) for seed in range(120)]


@pytest.fixture
def files(text):
    return {
        "--source": text("train.en", LINES[:100]),
        "--target": text("train.de", LINES[1:101]),
        "--valid-source": text("valid.en", LINES[100:]),
        "--valid-target": text("valid.de", LINES[100:]),
    }


@pytest.fixture
def vocabulary(tmp_path):
    return tiny_tokenizer().save(tmp_path, "vocab")


def options(files):
    return [part for item in files.items() for part in item]


def test_parts_are_joined_by_the_last_one(succeed, files, vocabulary, tmp_path):
    command = ("prepare", *options(files), "--vocabulary", vocabulary, "--output")
    succeed(*command, tmp_path / "whole")
    outcome = succeed(*command, tmp_path / "parts", "--part", "2/2")
    assert "Part 2 of 2 is complete; parts that are missing: 1." in outcome.errors
    assert "wrote" not in outcome.errors and not (tmp_path / "parts").exists()
    assert "100 training pairs" in succeed(*command, tmp_path / "parts", "--part", "1/2").errors
    whole, joined = (
        {p.relative_to(tmp_path / name): p.read_bytes() for p in (tmp_path / name).rglob("*.*")}
        for name in ("whole", "parts")
    )
    assert len(whole) == 11 and joined == whole


def test_a_vocabulary_of_no_size_is_that_of_train(succeed, files, tmp_path):
    outcome = succeed("prepare", *options(files), "--output", tmp_path / "prepared")
    assert "Learning a vocabulary of 4,000 bpe pieces" in outcome.errors


def test_nothing_of_bleu_is_needed(succeed, files, vocabulary, tmp_path, monkeypatch):
    monkeypatch.setattr("keras_transformer.evaluation.bleu.make_bleu", None)
    language = ("--target-language", "ja", "--output", tmp_path / "prepared")
    succeed("prepare", *options(files), "--vocabulary", vocabulary, *language)
    assert len(PreparedCorpus.load(tmp_path / "prepared").read("train")) == 100


def test_a_dataset_is_warned_of_like_text(succeed, vocabulary, tmp_path):
    pairs = [(line, f"{line} x") for line in LINES]
    store_translation_set(tmp_path / "sets", {"train": tuple(map(list, zip(*pairs, strict=True)))})
    dataset = ("--dataset", "wmt14_translate/de-en", "--data-dir", tmp_path / "sets")
    languages = ("--source-language", "en", "--target-language", "de", "--valid-split", "train")
    output = ("--vocabulary", vocabulary, "--output", tmp_path / "prepared")
    warnings = succeed("prepare", *dataset, *languages, *output).errors
    assert "validation sources (100.0%) are in the training text too" in warnings


@pytest.fixture
def prepared(succeed, files, vocabulary, tmp_path):
    output = tmp_path / "prepared"
    succeed("prepare", *options(files), "--vocabulary", vocabulary, "--output", output)
    return output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-length", 500], "of more than 256 subwords. Received: --max-length 500"),
        (["--vocab-size", 500], "Received: --prepared and --vocab-size"),
        (["--vocabulary-type", "unigram"], "Received: --vocabulary-type unigram"),
        (["--no-shared-vocabulary"], "Received: --no-shared-vocabulary"),
    ],
)
def test_train_says_what_does_not_go_with_it(refuse, prepared, tmp_path, arguments, message):
    options = ("--prepared", prepared, "--output", tmp_path / "model")
    assert message in refuse("train", *options, *arguments)


def test_a_recipe_takes_the_vocabulary_of_the_corpus(succeed, prepared, unmeasured):
    arguments = ["train", "--experiment", "wmt14-en-de-base", "--prepared", str(prepared)]
    size = tiny_tokenizer().vocab_size
    output = succeed(*arguments, "--plan").output
    assert f"vocabulary          {size} pieces for both languages" in output


def test_a_plan_is_that_of_the_corpus(succeed, files, text, unmeasured, tmp_path):
    output = tmp_path / "prepared"
    files["--target"] = text("more.de", [f"{line} {n}" for n, line in enumerate(LINES[:100])])
    own = ("--vocabulary-type", "subword", "--no-shared-vocabulary", "--max-length", 99)
    succeed("prepare", *options(files), *own, "--output", output)
    corpus = PreparedCorpus.load(output)
    sizes = corpus.source_tokenizer.vocab_size, corpus.target_tokenizer.vocab_size
    small = ["--preset", "tiny", "--position", "learned"]
    plan = succeed("train", "--prepared", output, *small, "--plan").output
    config = get_preset("tiny").config | {"position": "learned", "max_length": 99}
    model = Transformer(TransformerConfig(sizes[0], target_vocab_size=sizes[1], **config))
    assert f"{sizes[0]} and {sizes[1]} pieces for each language" in plan
    assert re.search(rf"parameters +{model.count_params():,}\b", plan)


@pytest.mark.parametrize("normalization, expected", [(None, "x²"), ("nmt_nfkc", "x2")])
def test_vocab_normalizes_as_it_is_told(normalization, expected, succeed, text, tmp_path):
    path = tmp_path / "new.model"
    given = ("--normalization", normalization) if normalization else ()
    succeed(
        "vocab", "--input", text("a.txt", ["x² and x2"]), "--output", path, "--size", 300, *given
    )
    tokenizer = load_tokenizer_file(path)
    assert tokenizer.decode(tokenizer.encode("x²")) == expected
