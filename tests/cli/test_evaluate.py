"""`evaluate`: a tensorflow-datasets split as its text in files; BLEU follows the language."""

import json

import pytest

from keras_transformer import Transformer, Translator
from keras_transformer.data import SubwordTokenizer
from keras_transformer.models import TransformerConfig
from tests.training.test_trainer import SMALL
from tests.translation_set import store_translation_set

ENGLISH = ["a red house", "the old dog sleeps", "a child sees the bird", "the bird sings"]
GERMAN = ["ein rotes Haus", "der alte Hund schläft", "ein Kind sieht den Vogel", "er singt"]
DATASET = ["--dataset", "wmt14_translate/de-en", "--source-language", "en",
           "--target-language", "de"]  # fmt: skip


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A folder with a set as tensorflow-datasets writes it, whose test split is not its train."""
    pytest.importorskip("tensorflow", reason="needs TensorFlow")
    splits = {"train": (ENGLISH[:1], GERMAN[:1]), "test": (ENGLISH, GERMAN)}
    return store_translation_set(tmp_path_factory.mktemp("tensorflow_datasets"), splits)


@pytest.mark.parametrize("answers", ["model", "hypothesis"])
def test_a_split_is_scored_as_its_text_in_files(
    answers, succeed, data_dir, saved_model_directory, tmp_path
):
    source, reference, hypothesis = (tmp_path / name for name in ("en", "de", "out"))
    source.write_text("\n".join(ENGLISH) + "\n", encoding="utf-8")
    reference.write_text("\n".join(GERMAN) + "\n", encoding="utf-8")
    hypothesis.write_text("ein rotes Haus\n" + "der Hund schläft jetzt nicht\n" * 3, "utf-8")
    files = ["--reference", reference, "--target-language", "de"]
    if answers == "model":
        files += ["--source", source]
    answer = saved_model_directory if answers == "model" else hypothesis
    results, scores = [], tmp_path / "scores.json"
    dataset = [*DATASET, "--data-dir", data_dir]
    for text in (files, [*dataset, "--split", "test"]):
        outcome = succeed("evaluate", f"--{answers}", answer, *text, "--json", scores)
        assert "Computing in " not in outcome.errors  # in float32 on every machine
        results.append(json.loads(scores.read_text("utf-8")))
    assert results[0]["scores"] == results[1]["scores"]
    assert (results[1]["dataset"], results[1]["split"]) == ("wmt14_translate/de-en", "test")
    assert results[1]["num_lines"] == 4


@pytest.mark.parametrize("options, tokenizer", [
    ([], "13a"), (["--target-language", "zho_Hans"], "zh"),
    (["--target-language", "zh", "--tokenize", "char"], "char"),
])  # fmt: skip
def test_bleu_follows_the_target_language(options, tokenizer, run, tmp_path):
    texts = {"answer": "今天天气好，我们去公园。\n", "reference": "今天天气很好，我们去公园。\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    files = "--hypothesis", tmp_path / "answer", "--reference", tmp_path / "reference"
    result = run("evaluate", *files, *options)
    assert f"tok:{tokenizer}" in result.output
    is_useful = float(result.output.split()[1]) > 50
    assert is_useful == (tokenizer != "13a")
    assert ("give --target-language CODE or --tokenize" in result.errors) == (not is_useful)


def test_subwords_of_references_are_joined_as_train_does(succeed, text, tmp_path, monkeypatch):
    tokenizer = SubwordTokenizer(["the", "play@@", "house", "is", "old", "."])
    model = Transformer(TransformerConfig(tokenizer.vocab_size, **SMALL), initialize=False)
    Translator(model, tokenizer).save(tmp_path / "model")
    answers = [tokenizer.decode(tokenizer.encode("the play@@ house is old ."))] * 2
    monkeypatch.setattr(Translator, "translate", lambda *_, **options: answers)
    lines = text("lines", ["the play@@ house is old ."] * 2)
    command = ["evaluate", "--model", tmp_path / "model", "--source", lines, "--reference", lines]
    output = succeed(*command, "--baseline", lines).output
    assert "100.00" in output.splitlines()[0] and "tok:none" in output
    assert "BLEU +0.00" in output
    assert "tok:zh" in succeed(*command, "--target-language", "zh").output


def test_a_baseline_is_compared_with(succeed, run, tmp_path):
    files = {"reference": GERMAN, "new": GERMAN, "old": [*GERMAN[:2], "ein Kind", "sie singt"]}
    for name, lines in {**files, "short": GERMAN[1:]}.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    scored = ["evaluate", "--hypothesis", tmp_path / "new", "--reference", tmp_path / "reference"]
    scores, old = tmp_path / "scores.json", tmp_path / "old"
    output = succeed(*scored, "--baseline", old, "--json", scores).output
    report = json.loads(scores.read_text("utf-8"))["baseline"]
    assert report["file"] == str(old)
    assert [each["name"] for each in report["comparisons"]] == ["BLEU", "chrF"]
    assert f"difference from {old} (chance is unlikely where p < 0.05):\n  BLEU +" in output
    assert "4 texts are too few" in succeed(*scored, "--baseline", old).errors
    result = run("evaluate", "--hypothesis", "-", *scored[3:], "--baseline", "-")
    assert result.status == 2 and "Only one of the files can be standard input" in result.errors
    result = run(*scored, "--baseline", tmp_path / "short")
    assert result.status == 2 and "with 3 and" in result.errors and not result.output
    result = run(*scored, "--baseline", old, "--json", old)
    assert result.status == 2 and len(old.read_text("utf-8").splitlines()) == 4
