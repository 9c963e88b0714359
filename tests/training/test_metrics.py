"""Figures per token: every token with a positive weight counts once, over all batches."""

import keras
import numpy as np
import pytest

from keras_transformer.data import PairsCorpus, SubwordTokenizer, train_sentencepiece
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.inference.tasks import get_task
from keras_transformer.losses import LabelSmoothedCrossEntropy, LossModel
from keras_transformer.models import TrainingRecipe, Transformer, TransformerConfig
from keras_transformer.training import (
    BleuOnDev,
    Perplexity,
    TokenAccuracy,
    TokenLoss,
    TrainingSettings,
    evaluate_tokens,
)
from tests.closeness import assert_close
from tests.oracle.loss import smoothed_cross_entropy

CLASSES = 7


@pytest.fixture
def batches():
    """Two batches of other widths and token counts, with weights that sum to 1 in each."""
    generator = np.random.default_rng(0)
    result = []
    for width, lengths in ((5, [5, 5, 5]), (2, [1, 0, 1])):
        mask = np.arange(width) < np.array(lengths)[:, None]
        labels = generator.integers(0, CLASSES, mask.shape)
        logits = generator.normal(0, 2, (*mask.shape, CLASSES)).astype("float32")
        result.append((labels, logits, (mask / mask.sum()).astype("float32"), mask))
    return result


def run(metric, batches):
    for labels, logits, weights, _ in batches:
        metric.update_state(labels, logits, weights)
    return float(metric.result())


def means(batches):
    """Returns the mean loss and accuracy over the tokens."""
    values = np.concatenate(
        [smoothed_cross_entropy(labels, logits)[mask] for labels, logits, _, mask in batches]
    )
    right = np.concatenate([(logits.argmax(-1) == labels)[m] for labels, logits, _, m in batches])
    return values.mean(), right.mean()


def test_metrics_are_means_over_tokens_not_over_batches(batches):
    loss, accuracy = means(batches)
    assert_close(run(TokenLoss(), batches), loss)
    assert_close(run(Perplexity(), batches), np.exp(loss))
    assert_close(run(TokenAccuracy(), batches), accuracy)
    batch_means = [smoothed_cross_entropy(*batch[:2])[batch[3]].mean() for batch in batches]
    assert abs(np.mean(batch_means) - loss) > 1e-3  # the test can tell them apart


def test_evaluate_tokens_has_the_same_means_without_dropout(batches):
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8, "num_heads": 2}
    model = Transformer(TransformerConfig(CLASSES, intermediate_dim=16, dropout=0.5, **sizes))
    dataset, found = [], []
    for labels, _, weights, mask in batches:
        inputs = {"source": labels.astype("int32"), "target": labels.astype("int32")}
        dataset.append((inputs, labels * mask, weights))
        logits = keras.ops.convert_to_numpy(model(inputs, training=False)).astype("float64")
        found.append((labels, logits, weights, mask))
    result, (loss, accuracy) = evaluate_tokens(model, dataset), means(found)
    expected = loss, np.exp(loss), accuracy, sum(mask.sum() for *_, mask in batches)
    assert_close(result, expected)


def test_labels_may_have_a_last_axis_of_one(batches):
    columns = [(labels[..., None], *others) for labels, *others in batches]
    for metric in (TokenLoss, Perplexity, TokenAccuracy):
        assert_close(run(metric(), columns), run(metric(), batches))


def test_a_logit_may_be_minus_infinity(batches):
    """A head may rule an id out; without smoothing it is no label here, and costs nothing."""
    labels, logits, weights, mask = batches[0]
    logits = np.where(np.arange(CLASSES) == 0, -np.inf, logits).astype("float32")
    labels = np.maximum(labels, 1)
    expected = smoothed_cross_entropy(labels - 1, logits[..., 1:])[mask].mean()
    assert_close(run(TokenLoss(), [(labels, logits, weights, mask)]), expected)
    loss = LabelSmoothedCrossEntropy(0.0)(labels, logits, weights)
    assert_close(float(loss), expected)


def test_a_head_of_keras_is_evaluated_in_mixed_precision():
    ids, dtype = np.array([[1, 2]], "int32"), "mixed_bfloat16"
    inputs = keras.Input((None,), dtype="int32")
    states = keras.layers.Embedding(CLASSES, 8, dtype=dtype)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(CLASSES, dtype=dtype)(states))
    batch = ids, ids, np.ones((1, 2), "float32")
    expected = smoothed_cross_entropy(
        ids, keras.ops.convert_to_numpy(model(ids)).astype("float64")
    ).mean()
    assert_close(evaluate_tokens(model, [batch]).loss, expected, "bfloat16")


def test_refuse_what_has_no_axis_of_logits():
    with pytest.raises(ValueError, match=r"`y_pred` must have the shape \[batch, length, V\]"):
        TokenLoss()(np.array([[1, 2]]), np.zeros((1, 2)))
    with pytest.raises(ValueError, match="`sample_weight` must have the shape"):
        TokenLoss()(np.array([[1, 2]]), np.zeros((1, 2, 3)), np.ones(2))
    config = TransformerConfig(CLASSES, num_encoder_layers=1, num_decoder_layers=1, d_model=8,
                               num_heads=2, intermediate_dim=16)  # fmt: skip
    with pytest.raises(ValueError, match="give its `transformer`"):
        evaluate_tokens(LossModel(Transformer(config)), [])


def test_samples_show_the_beginnings_of_texts_without_spaces():
    chinese, english = "今天下雨我们在家里喝茶" * 10, "It rains today " * 10
    score = BleuOnDev([english], [chinese], SubwordTokenizer(["a"]))
    score.hypotheses = ["我喝茶"]
    [line] = score.sample_lines()
    assert line == f"  {english[:80]}... -> 我喝茶 (reference: {chinese[:80]}...)"


def test_chrf_stands_beside_bleu():
    score = BleuOnDev(["a b"], ["b a"], SubwordTokenizer(["a", "b"]))
    for answer, chrf in (("b a", 100.0), ("c", 0.0)):
        score.hypotheses = [answer]
        assert score.figures() == {"chrf": chrf}


@pytest.mark.parametrize("tokenize, warns", [(None, True), ("zh", False)])
def test_a_training_warns_of_validation_text_without_spaces(tokenize, warns, caplog):
    corpus = PairsCorpus([("It rains today.", "今天下雨。"), ("I drink tea.", "我喝茶。")])
    tokenizers = TokenizerPair(train_sentencepiece(corpus, 300, allow_fewer=True))
    settings = TrainingSettings(task_settings={"bleu_tokenize": tokenize})
    get_task("translation").make_score(corpus, tokenizers, settings, TrainingRecipe())
    assert ("give --target-language CODE or --bleu-tokenize" in caplog.text) == warns
