"""A training of a parser: settings, data, directory, and the F1 that chooses its weights."""

import csv

import pytest

from keras_transformer.cli.application import build_parser
from keras_transformer.cli.settings import resolve, training_settings
from keras_transformer.data import PairsCorpus, SubwordTokenizer
from keras_transformer.decoding import GreedySearch
from keras_transformer.errors import UserError
from keras_transformer.inference.tasks import get_task
from keras_transformer.parsing import Linearization, TreebankCorpus, parseval
from keras_transformer.parsing.parser import Parser
from keras_transformer.training import TrainingSettings, train
from tests.toy_treebank import toy_trees, write_toy_trees
from tests.training.uncompiled import uncompiled

pytestmark = pytest.mark.tensorflow_only("`train` reads its data with tf.data")

SMALL = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8, "intermediate_dim": 16,
         "num_heads": 2, "position": "learned", "max_length": 90}  # fmt: skip
RECIPE = {"tokens_per_batch": 256, "warmup_steps": 20, "peak_learning_rate": 1e-2,
          "average_checkpoints": 2, "beam_size": 2, "max_length": 90}  # fmt: skip


def settings(**changes):
    values = {"preset": "parsing_small", "task": "parsing", "model": SMALL, "recipe": RECIPE,
              "tokenizer": "subword", "vocab_size": None, "max_steps": 2, "evaluate_every": 1,
              "checkpoint_every": 1, **changes}  # fmt: skip
    return TrainingSettings.from_dict(values)


def fit(directory, files, **changes):
    linearization = Linearization(**changes.get("linearization", {}))
    corpora = (TreebankCorpus(path, linearization) for path in files)
    return train(directory, *corpora, settings=settings(**changes), report=lambda line: None)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files of training and development trees."""
    folder = tmp_path_factory.mktemp("trees")
    return write_toy_trees(folder / "train", 60, seed=1), write_toy_trees(folder / "dev", 3, 2)


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory):
    """A directory after two steps, and the result."""
    directory = tmp_path_factory.mktemp("finished") / "model"
    with uncompiled():
        return directory, fit(directory, files)


def test_the_f1_is_that_of_greedy_parses_and_chooses_the_weights(finished, files):
    directory, result = finished
    gold = list(TreebankCorpus(files[1]).trees())
    sentences = [tree.words() for tree in gold]
    parser = Parser.load(directory)
    assert parser.search.beam_size == 2 and result.translator is None
    with uncompiled():
        parses = parser.parse(sentences, search=GreedySearch())
    assert result.f1 == pytest.approx(parseval(gold, parses).f1)
    with open(directory / "history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["1", "2"]
    assert result.f1 >= max(float(row["valid_f1"]) for row in rows) - 1e-3


def test_words_and_symbols_have_vocabularies_of_their_own(finished):
    """Of a hand-made count: every symbol has an id, and so has a word that occurs twice."""
    parser = finished[1].parser
    pieces = parser.target_tokenizer.pieces(range(4, parser.target_tokenizer.vocab_size))
    symbols = {f"{bracket}{label}" for bracket in "()" for label in ("S", "NP", "VP", "PP")}
    assert set(pieces) == {"XX", *symbols} and pieces[0] == "XX", "the most frequent comes first"


def test_a_word_that_occurs_once_is_unknown_unless_a_vocabulary_is_given(tmp_path):
    path = tmp_path / "trees"
    path.write_text("(NP (NN rain) (NN rain))\n(NP (NN sun))\n")
    for given, ids in ((None, [4, 1]), (SubwordTokenizer(["sun", "rain"]), [5, 4])):
        corpus = TreebankCorpus(path)
        tokenizers = get_task("parsing").learn_tokenizers(corpus, settings(), given, print)
        assert tokenizers.source.encode("rain sun") == ids
        assert tokenizers.target.vocab_size == 4 + len(["XX", "(NP", ")NP"])


def test_another_way_to_write_trees_is_refused(finished, files):
    with pytest.raises(UserError, match="tags was False, now True"):
        fit(finished[0], files, linearization={"tags": True})


def test_other_corpora_are_refused(files, tmp_path):
    tight = Linearization(max_unary=1)
    path = tmp_path / "trees"
    path.write_text("(NP (NN a) (NN b))\n(NP (NP (NN c)))\n")
    for corpus, form, message in (
        (PairsCorpus([("a", "(S XX )S")]), {}, "TreebankCorpus.*PairsCorpus"),
        (TreebankCorpus(path, tight), {}, "linearization of the settings.*max_unary=1"),
        (TreebankCorpus(path, tight), {"max_unary": 1}, "may have 1 .*`max_unary`.*Received: 2 in"),
    ):
        with pytest.raises(UserError, match=message):
            get_task("parsing").check(corpus, settings(linearization=form))


@pytest.mark.slow
def test_a_toy_grammar_is_learned(tmp_path):
    """The preposition says where its phrase belongs: nothing else tells the trees apart."""
    files = write_toy_trees(tmp_path / "train", 6000, seed=1), tmp_path / "dev"
    write_toy_trees(files[1], 100, seed=2)
    model = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 64, "num_heads": 4,
             "intermediate_dim": 128, "dropout": 0.0, "attention_dropout": 0.0}  # fmt: skip
    recipe = {**RECIPE, "tokens_per_batch": 2048, "peak_learning_rate": 3e-3, "warmup_steps": 100,
              "label_smoothing": 0.0, "average_checkpoints": 5, "max_length": 512}  # fmt: skip
    steps = {"max_steps": 2400, "evaluate_every": 600, "checkpoint_every": 100}
    result = fit(tmp_path / "model", files, model=model, recipe=recipe, **steps)
    unseen = toy_trees(100, seed=3)
    parses = result.parser.parse([tree.words() for tree in unseen])
    assert parseval(unseen, parses).strict_f1 > 95


def from_command_line(*arguments):
    values = resolve(build_parser().parse_args(["train", "--task", "parsing", *arguments]))
    return training_settings(values)


def test_every_option_of_parsing_reaches_the_training():
    found = from_command_line(
        *"--trees a --valid-trees b --emit-words --emit-tags --unlabelled-closing --f1-every 2 "
        "--f1-beam-size 3 --f1-trees 4 --preset parsing --vocab-size 16000".split()
    )
    assert found == TrainingSettings(
        preset="parsing", task="parsing", vocab_size=16_000, shared_vocabulary=False,
        tokenizer="subword",
        task_settings={
            "f1_every": 2, "f1_beam_size": 3, "f1_trees": 4,
            "linearization": {"words": True, "tags": True, "numbers": False,
                              "labelled_closing": False, "joined": False},
        },
    )  # fmt: skip


@pytest.mark.parametrize("arguments, form", [
    ("", {"joined": True, "labelled_closing": False}),
    ("--emit-numbers", {"numbers": True}),
    ("--no-emit-numbers", {}),
    ("--no-emit-joined", {"numbers": True}),
    ("--emit-joined --max-unary 3",
     {"joined": True, "labelled_closing": False, "max_unary": 3}),
    ("--unlabelled-closing", {"numbers": True, "labelled_closing": False}),
    ("--emit-tags", {"tags": True}),
])  # fmt: skip
def test_the_form_of_trees_follows_the_options(arguments, form):
    found = from_command_line(*arguments.split())
    assert found.preset == "parsing_small"
    assert Linearization(**found.task_settings["linearization"]) == Linearization(**form)


@pytest.mark.parametrize("arguments, message", [
    ("", "--task parsing needs --trees FILE and --valid-trees FILE"),
    ("--source {trees} {both}", "--source goes with --task translation"),
    ("--emit-words --emit-numbers {both}", "must not both be True"),
    ("--emit-words --emit-joined {both}", "must be False. Received: words=True"),
    ("--task translation --f1-trees 5 --tsv x --valid-tsv y", "--f1-trees goes with"),
    ("--trees {trees} --valid-trees {broken}", "broken.trees', line 2: the tree that begins"),
])  # fmt: skip
def test_what_makes_no_sense_is_one_line(refuse, tmp_path, arguments, message):
    trees, broken = write_toy_trees(tmp_path / "some.trees", 3), tmp_path / "broken.trees"
    broken.write_text("(NP (NN a))\n(NP (NN b)\n")
    both = f"--trees {trees} --valid-trees {trees}"
    words = arguments.format(trees=trees, broken=broken, both=both).split()
    output = tmp_path / "model"
    assert message in refuse("train", "--task", "parsing", "--output", output, *words)
    assert not output.exists()


@pytest.mark.parametrize("arguments, vocabulary", [
    ("", "900 subword pieces for the words, about 1064 symbols for the trees"),
    ("--emit-numbers", "900 subword pieces for the words, about 164 symbols for the trees"),
    ("--emit-words", "900 subword pieces for the words, as many for the trees"),
])  # fmt: skip
def test_a_plan_counts_words_and_trees(succeed, unmeasured, arguments, vocabulary):
    plan = succeed("train", "--task", "parsing", "--trees", "some.trees", "--plan",
                   "--vocab-size", 900, *arguments.split())  # fmt: skip
    lines = {line[:20].strip(): line[20:] for line in plan.output.splitlines()}
    assert (lines["data"], lines["vocabulary"]) == ("some.trees", vocabulary)


@pytest.mark.slow
def test_a_vocabulary_of_the_words_is_given(succeed, tmp_path):
    trees, words = write_toy_trees(tmp_path / "some.trees", 30), tmp_path / "words.txt"
    words.write_text("<pad>\n<unk>\n<s>\n</s>\nthe\ndog\nsees\n")
    out = tmp_path / "model"
    succeed("train", "--task", "parsing", "--trees", trees, "--valid-trees", trees, "--output",
            out, "--vocabulary", words, "--max-steps", 1, "--num-encoder-layers", 1)  # fmt: skip
    pieces = Parser.load(out).source_tokenizer.pieces(range(4, 7))
    assert pieces == ["the", "dog", "sees"]
