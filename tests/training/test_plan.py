"""The plan of a training: its rounds, its data, its recipe and its config."""

import collections

import pytest

from keras_transformer.data import EncodedCorpus, MixedCorpus, PairsCorpus, SubwordTokenizer
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.data.vocabularies import learn_vocabularies
from keras_transformer.errors import UserError
from keras_transformer.inference.tasks import get_task
from keras_transformer.models import TrainingRecipe
from keras_transformer.training.checkpoints import Progress
from keras_transformer.training.plan import make_config, make_plan, make_recipe
from keras_transformer.training.training_data import make_training_data
from tests.training.test_trainer import RECIPE, SMALL, WORDS, corpus, settings

pytestmark = pytest.mark.tensorflow_only("`train` reads its data with tf.data")


def planned(directory, **changes):
    tokenizers = SubwordTokenizer(WORDS), None
    return make_plan(directory, corpus(1), {}, settings(**changes), tokenizers, lambda line: None)


@pytest.mark.parametrize("checkpoint_every, evaluate_every", [(2, 5), (100, 1), (7, None)])
@pytest.mark.parametrize("start", [0, 4])
def test_rounds_end_at_checkpoints_and_evaluations(
    tmp_path, checkpoint_every, evaluate_every, start
):
    changes = {"checkpoint_every": checkpoint_every, "evaluate_every": evaluate_every}
    plan = planned(tmp_path, **changes, max_steps=11)
    due = {
        "saves": {n for n in range(1, 12) if n % checkpoint_every == 0 or n == 11},
        "evaluates": {n for n in range(1, 12) if n % plan.evaluate_every == 0 or n == 11},
    }
    # The first files are written after the first step.
    ends = sorted(n for n in {1, *due["saves"], *due["evaluates"]} if n > start)
    progress = Progress(step=start)
    for end in ends:
        found = plan.next_round(progress)
        assert found == (end, end in due["saves"], end in due["evaluates"])
        progress.step = end
    assert plan.next_round(progress) is None


@pytest.mark.parametrize(
    "reached, reason",
    [
        ({"step": 6}, "all 6 steps are done. Allow more steps"),
        ({"step": 5, "minutes": 3.0}, "3 minutes over all runs are used up. Allow more minutes"),
        ({"step": 5, "without_gain": 2}, "patience of 2 validations is used up. Raise it"),
        ({"step": 5, "minutes": 2.9, "without_gain": 1}, ""),
    ],
)
def test_a_training_ends_for_a_reason(tmp_path, reached, reason):
    plan, progress = planned(tmp_path, max_minutes=3.0, patience=2), Progress(**reached)
    assert reason in (plan.reason_to_end(progress) or "")
    assert bool(plan.next_round(progress)) == (not reason)


def test_what_is_not_set_is_chosen_once(tmp_path):
    plan = planned(tmp_path, max_steps=None, evaluate_every=None, checkpoint_every=None)
    steps = plan.data.steps_per_epoch
    assert plan.evaluate_every == plan.checkpoint_every == steps > 1
    assert plan.max_steps == plan.recipe.max_steps
    assert plan.average_windows == (2,) and plan.keep_checkpoints == 2
    assert plan.settings.packed_width is None and plan.saved_settings.packed_width == 0


def test_other_line_ends_are_other_data():
    """The words of both sides are the same, one after another; so are the lengths together."""
    corpora = [PairsCorpus(pairs) for pairs in ([("a a", "a b"), ("b b", "c")],
                                                [("a a", "a"), ("b b", "b c")])]  # fmt: skip
    recipe = TrainingRecipe(tokens_per_batch=16)
    tokenizers = learn_vocabularies(corpora[0], settings())
    one, other = (
        make_training_data(pairs, {}, tokenizers, settings(), recipe).fingerprint
        for pairs in corpora
    )
    assert {name for name in one if one[name] != other[name]} == {"line_ends"}


def test_a_validation_batch_is_no_larger_than_a_part_of_a_training_batch():
    pairs = PairsCorpus([("a red house", "ein rotes Haus")] * 40)
    tokenizers, recipe = learn_vocabularies(pairs, settings()), TrainingRecipe(tokens_per_batch=96)
    for parts in (1, 4):
        data = make_training_data(
            pairs, {"valid": pairs}, tokenizers, settings(), recipe, num_replicas=parts
        )
        sizes = [labels.size for _, labels, _ in data.valid_batches["valid"]]
        assert 0 < max(sizes) <= 96 // parts


def test_tokens_without_a_piece_are_reported():
    pairs, lines = PairsCorpus([("a red house", "ein rotes Haus")] * 40), []
    tokenizers, recipe = learn_vocabularies(pairs, settings()), TrainingRecipe()
    unknown = TokenizerPair(tokenizers.source, SubwordTokenizer(["ein", "rotes"]))
    for pair in (tokenizers, unknown):
        make_training_data(pairs, {}, pair, settings(), recipe, report=lines.append)
    [line] = [line for line in lines if "vocabulary" in line]
    assert line == "33.3% of the target tokens are not in the vocabulary."


def mixed(french=3, **options):
    lines = [(f"red house {n}", f"Haus {n}") for n in range(60)]
    corpora = {"german": PairsCorpus(lines), "french": PairsCorpus(lines[:20])}
    return MixedCorpus(corpora, {"german": 1, "french": french}, **options)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_an_epoch_of_several_corpora_has_its_proportions_with_bpe_dropout_too(dropout):
    """Of 80 pairs, weights 1 and 3 ask for 20 of 60 and for 60 of 20."""
    chosen = settings(tokenizer="bpe", vocab_size=290, bpe_dropout=dropout)
    corpus, recipe, lines = mixed(tags={"french": "<f>"}), TrainingRecipe(tokens_per_batch=256), []
    tokenizers = learn_vocabularies(corpus, chosen)
    data = make_training_data(corpus, {}, tokenizers, chosen, recipe, report=lines.append)
    assert "An epoch has 60 pairs of french, which has 20." in lines
    texts = [
        [text for inputs, _, _ in data.batches.batches(epoch)
         for text in tokenizers.source.decode_batch(inputs["source"]) if text]
        for epoch in range(3)
    ]  # fmt: skip
    for epoch in texts:
        french = collections.Counter(text for text in epoch if text.startswith("<f>"))
        assert len(epoch) == 80 and len(french) == 20 and set(french.values()) == {3}
    assert len({text for epoch in texts for text in epoch if text[0] != "<"}) == 60
    assert dropout or data.tokens_per_step * data.steps_per_epoch == sum(
        (labels > 0).sum() for _, labels, _ in data.batches.batches(0)
    )


def test_a_vocabulary_of_words_has_no_tags():
    chosen = settings(tokenizer="subword")
    with pytest.raises(
        UserError, match="bpe or unigram.* tokenizer=\"subword\" with the tag '<f>'"
    ):
        learn_vocabularies(mixed(tags={"french": "<f>"}), chosen)


def test_validation_by_bleu_needs_text():
    encoded = EncodedCorpus.from_corpus(corpus(1), SubwordTokenizer(WORDS))
    pair = TokenizerPair(SubwordTokenizer(WORDS))
    task = get_task("translation")
    assert task.make_score(encoded, pair, settings(bleu_every=0), TrainingRecipe()) is None
    with pytest.raises(UserError, match="needs the text.* Received: an EncodedCorpus"):
        task.make_score(encoded, pair, settings(bleu_every=1), TrainingRecipe())


def test_a_training_sentence_may_fill_all_positions_and_no_more():
    positions = {**SMALL, "position": "learned", "max_length": 16}
    chosen = settings(model=positions, recipe={**RECIPE, "max_length": 16})
    assert make_config(chosen, make_recipe(chosen), 9).max_length == 16
    chosen = settings(model=positions, recipe={**RECIPE, "max_length": 17})
    with pytest.raises(UserError, match="16 positions.*17 tokens") as error:
        make_config(chosen, make_recipe(chosen), 9)
    assert "\n" not in str(error.value)
