"""Loss, perplexity and accuracy on a data set, per token, without dropout or smoothing."""

import math
from typing import NamedTuple

from keras import ops

from keras_transformer.decoding import compile_search
from keras_transformer.training.label_smoothing import closed_form


class TokenEvaluation(NamedTuple):
    """Figures per token of a data set.

    Attributes:
        loss: cross-entropy in nats.
        perplexity: its exponential.
        accuracy: share of tokens that the model finds the most probable.
        num_tokens: number of target tokens, padding not counted.

    Example:

    >>> from keras_transformer.training import TokenEvaluation
    >>> figures = TokenEvaluation(loss=1.0, perplexity=2.718, accuracy=0.7, num_tokens=900)
    >>> figures.perplexity
    2.718
    """

    loss: float
    perplexity: float
    accuracy: float
    num_tokens: int


class TokenEvaluator:
    """Evaluates one model on batches; compiles once for all calls.

    Args:
        model: `Transformer`.

    Example:

    >>> import numpy as np
    >>> from keras_transformer.models import Transformer
    >>> from keras_transformer.training import TokenEvaluator
    >>> model = Transformer.from_preset("tiny", vocab_size=100)
    >>> ids = np.ones((2, 4), "int32")
    >>> batch = ({"source": ids, "target": ids}, ids, np.full((2, 4), 1 / 8, "float32"))
    >>> TokenEvaluator(model)([batch]).num_tokens
    8
    """

    def __init__(self, model):
        self.model = model
        self._step = compile_search(self._sums, model.variables)

    def __call__(self, batches) -> TokenEvaluation:
        """Runs over the batches once.

        Args:
            batches: iterable of (inputs, labels int `[batch, length]`, weights), as `TokenBatches`
                gives them; a token counts if its weight is above 0.

        Returns:
            `TokenEvaluation`.
        """
        totals = [0.0, 0.0, 0.0]
        for inputs, labels, weights in batches:
            sums = self._step(inputs, labels, weights)
            totals = [total + float(value) for total, value in zip(totals, sums, strict=True)]
        loss_sum, right, count = totals
        loss = loss_sum / max(count, 1.0)
        perplexity = math.exp(loss) if loss < 700 else math.inf
        return TokenEvaluation(loss, perplexity, right / max(count, 1.0), int(count))

    def _sums(self, inputs, labels, weights):
        logits = self.model(inputs, training=False)
        labels = ops.cast(labels, "int32")
        counted = ops.cast(ops.convert_to_tensor(weights) > 0, logits.dtype)
        loss = closed_form(labels, logits, 0.0)
        right = ops.equal(ops.cast(ops.argmax(logits, axis=-1), "int32"), labels)
        right = ops.cast(right, logits.dtype)
        return ops.sum(loss * counted), ops.sum(right * counted), ops.sum(counted)


def evaluate_tokens(model, dataset) -> TokenEvaluation:
    """Evaluates a model on a finite data set; see `TokenEvaluator` for repeated evaluations.

    Args:
        model: `Transformer`.
        dataset: iterable of batches as `TokenBatches` gives them.

    Returns:
        `TokenEvaluation`: loss per token (nats, no smoothing), perplexity, accuracy, tokens.

    Example:

    >>> import numpy as np
    >>> from keras_transformer.models import Transformer
    >>> from keras_transformer.training import evaluate_tokens
    >>> ids = np.ones((1, 2), "int32")
    >>> batch = ({"source": ids, "target": ids}, ids, np.ones((1, 2), "float32"))
    >>> evaluate_tokens(Transformer.from_preset("tiny", vocab_size=100), [batch]).num_tokens
    2
    """
    return TokenEvaluator(model)(dataset)
