"""train for parsing: a directory that parses, resumed, chosen by F1; a toy grammar is learned."""

import csv
import importlib.util
import json
import re
import shutil

import pytest

from keras_transformer.data import PairsCorpus, SentencePieceTokenizer, SubwordTokenizer
from keras_transformer.decoding import GreedySearch
from keras_transformer.errors import UserError
from keras_transformer.inference.tasks import get_task
from keras_transformer.parsing import Linearization, Tree, TreebankCorpus, parseval
from keras_transformer.parsing.parser import Parser
from keras_transformer.training import TrainingSettings, train
from tests.toy_treebank import toy_trees, write_toy_trees
from tests.training.uncompiled import uncompiled

pytestmark = pytest.mark.tensorflow_only("`train` reads its data with tf.data")

SMALL = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8, "intermediate_dim": 16,
         "num_heads": 2}  # fmt: skip
RECIPE = {"tokens_per_batch": 256, "warmup_steps": 20, "peak_learning_rate": 1e-2,
          "average_checkpoints": 2, "beam_size": 2}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files of training and development trees."""
    folder = tmp_path_factory.mktemp("trees")
    return write_toy_trees(folder / "train", 60, seed=1), write_toy_trees(folder / "dev", 6, 2)


def settings(**changes):
    values = {"preset": "parsing_small", "task": "parsing", "model": SMALL, "recipe": RECIPE,
              "tokenizer": "subword", "vocab_size": None, "max_steps": 4, "evaluate_every": 2,
              "checkpoint_every": 2, **changes}  # fmt: skip
    return TrainingSettings.from_dict(values)


def run(directory, files, lines=None, **changes):
    report = (lambda line: None) if lines is None else lines.append
    linearization = Linearization(**changes.get("linearization", {}))
    corpora = (TreebankCorpus(path, linearization) for path in files)
    return train(directory, *corpora, settings=settings(**changes), report=report)


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory):
    """A directory after four steps, the result and the reported lines."""
    directory, lines = tmp_path_factory.mktemp("finished") / "model", []
    with uncompiled():
        return directory, run(directory, files, lines), lines


@pytest.mark.slow
def test_the_directory_parses_as_the_result_does(finished, files):
    directory, result, _ = finished
    content = json.loads((directory / "training.json").read_text())["settings"]
    assert (content["task"], content["shared_vocabulary"]) == ("parsing", False)
    assert content["task_settings"]["linearization"] == Linearization().to_dict()
    assert {path.name for path in directory.iterdir()} == {
        "config.json", "model.weights.h5", "source_tokenizer.txt", "target_tokenizer.txt",
        "recipe.json", "training.json", "history.csv", "checkpoints",
    }  # fmt: skip
    assert result.translator is None and result.bleu is None
    sentences = [tree.words() for tree in TreebankCorpus(files[1]).trees()]
    parser = Parser.load(directory)
    assert parser.search.beam_size == 2 and parser.extra_length == 300
    parses = parser.parse(sentences)
    assert parses == result.parser.parse(sentences)
    assert [parse.words() for parse in parses] == sentences


def test_the_f1_is_that_of_greedy_parses_and_chooses_the_weights(finished, files):
    directory, result, lines = finished
    gold = list(TreebankCorpus(files[1]).trees())
    parses = result.parser.parse([tree.words() for tree in gold], search=GreedySearch())
    assert result.f1 == pytest.approx(parseval(gold, parses).f1)
    with open(directory / "history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["2", "4"]
    assert "valid_bleu" not in rows[0]
    assert result.f1 >= max(float(row["valid_f1"]) for row in rows) - 1e-3
    text = "\n".join(lines)
    assert re.search(rf"^step 4.*F1 {float(rows[1]['valid_f1']):.2f}", text, re.MULTILINE)
    assert "\naverage of the last 2 checkpoints: F1 " in text


def test_words_and_symbols_have_vocabularies_of_their_own(finished):
    """Of a hand-made count: every symbol has an id, and so has a word that occurs twice."""
    parser = finished[1].parser
    pieces = parser.target_tokenizer.pieces(range(4, parser.target_tokenizer.vocab_size))
    symbols = {f"{bracket}{label}" for bracket in "()" for label in ("S", "NP", "VP", "PP")}
    assert set(pieces) == {"XX", *symbols} and pieces[0] == "XX", "the most frequent comes first"
    config = parser.model.config
    assert (config.target_vocab_size, config.vocab_size) == (13, parser.source_tokenizer.vocab_size)


def test_a_word_that_occurs_once_is_unknown_unless_a_vocabulary_is_given(tmp_path):
    path = tmp_path / "trees"
    path.write_text("(NP (NN rain) (NN rain))\n(NP (NN sun))\n")
    for given, ids in ((None, [4, 1]), (SubwordTokenizer(["sun", "rain"]), [5, 4])):
        corpus = TreebankCorpus(path)
        tokenizers = get_task("parsing").learn_tokenizers(corpus, settings(), given, print)
        assert tokenizers.source.encode("rain sun") == ids
        assert tokenizers.target.vocab_size == 4 + len(["XX", "(NP", ")NP"])


@pytest.fixture(scope="module")
def resumed(finished, files, tmp_path_factory):
    """The directory with two more steps and fewer trees to parse: result, lines, event files."""
    from tests.training.test_tensorboard_log import read

    directory, lines = tmp_path_factory.mktemp("resumed") / "model", []
    shutil.copytree(finished[0], directory)
    changes = {"max_steps": 6, "f1_trees": 5, "f1_every": 3}
    changes["tensorboard"] = importlib.util.find_spec("matplotlib") is not None
    with uncompiled():
        result = run(directory, files, lines, **changes)
    return result, lines, read(directory) if changes["tensorboard"] else None


def test_another_way_to_write_trees_is_refused(finished, files):
    with pytest.raises(UserError, match="tags was False, now True"):
        run(finished[0], files, linearization={"tags": True})


@pytest.mark.slow
@pytest.mark.parametrize("changes, kinds", [
    ({"linearization": {"tags": True, "labelled_closing": False}}, None),
    ({"linearization": {"words": True}}, (SubwordTokenizer, SubwordTokenizer)),
    ({"tokenizer": "unigram", "vocab_size": 290}, (SentencePieceTokenizer, SubwordTokenizer)),
    # The way that differs most: a target of pieces, which no constraint can hold to the words.
    ({"linearization": {"words": True}, "tokenizer": "bpe", "vocab_size": 300},
     (SentencePieceTokenizer, SentencePieceTokenizer)),
])  # fmt: skip
def test_every_way_to_write_trees_and_words(files, tmp_path, changes, kinds):
    result = run(tmp_path / "model", files, max_steps=1, **changes)
    parser = Parser.load(tmp_path / "model")
    assert parser.linearization == Linearization(**changes.get("linearization", {}))
    tokenizers = parser.source_tokenizer, parser.target_tokenizer
    assert tuple(map(type, tokenizers)) == (kinds or (SubwordTokenizer, SubwordTokenizer))
    sentences = ["the dog sees a cat .", "the dog " * 60]  # longer than any of the training
    assert [parse.words() for parse in parser.parse(sentences)] == [s.split() for s in sentences]
    assert parser.constrained == isinstance(parser.target_tokenizer, SubwordTokenizer)
    assert 0 <= result.f1 <= 100


def test_other_corpora_are_refused(files, tmp_path):
    pairs = PairsCorpus([("a", "(S XX )S")])
    with pytest.raises(UserError, match="TreebankCorpus.*PairsCorpus"):
        train(tmp_path, pairs, None, settings())
    other = TreebankCorpus(files[0], Linearization(tags=True))
    with pytest.raises(UserError, match="linearization of the settings.*tags=True"):
        train(tmp_path, TreebankCorpus(files[0]), other, settings())
    tight = {"max_unary": 1}
    path = tmp_path / "trees"
    path.write_text("(NP (NN a) (NN b))\n(NP (NP (NN c)))\n")
    corpus = TreebankCorpus(path, Linearization(**tight))
    with pytest.raises(UserError, match="may have 1 .*--max-unary.*Received: 2 in"):
        train(tmp_path / "model", corpus, None, settings(linearization=tight))
    assert [path.name for path in tmp_path.iterdir()] == ["trees"]


@pytest.mark.slow
def test_tensorboard_shows_trees(resumed, files):
    found = resumed[2]
    if found is None:
        pytest.skip("the picture needs matplotlib")
    assert 0 <= found["scalars", "valid/f1"][6] <= 100
    table = found["text", "valid/parses"][6]
    gold = next(TreebankCorpus(files[1]).trees())
    header, first = (tuple(cell.decode() for cell in row) for row in table[:2])
    assert header == ("source", "parse", "reference")
    assert (first[0], first[2]) == (" ".join(gold.words()), str(gold))
    assert Tree.parse(first[1]).words() == gold.words()
    assert ("images", "valid/attention") in found


@pytest.mark.slow
def test_a_toy_grammar_is_learned(tmp_path):
    """The preposition says where its phrase belongs: nothing else tells the trees apart."""
    files = write_toy_trees(tmp_path / "train", 6000, seed=1), tmp_path / "dev"
    write_toy_trees(files[1], 100, seed=2)
    model = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 64, "num_heads": 4,
             "intermediate_dim": 128, "dropout": 0.0, "attention_dropout": 0.0}  # fmt: skip
    recipe = {**RECIPE, "tokens_per_batch": 2048, "peak_learning_rate": 3e-3, "warmup_steps": 100,
              "label_smoothing": 0.0, "average_checkpoints": 5}  # fmt: skip
    steps = {"max_steps": 2400, "evaluate_every": 600, "checkpoint_every": 100}
    result = run(tmp_path / "model", files, model=model, recipe=recipe, **steps)
    assert result.f1 > 95
    unseen = toy_trees(100, seed=3)
    parses = result.parser.parse([tree.words() for tree in unseen])
    assert parseval(unseen, parses).strict_f1 > 95
