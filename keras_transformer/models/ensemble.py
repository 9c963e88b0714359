"""Several models of one vocabulary that translate as one."""

import dataclasses

from keras import ops

from keras_transformer.errors import UserError


class Ensemble:
    """The average of models that share their vocabularies, for decoding and scoring.

    The log-probabilities of the next token are averaged over the models, and renormalised: the
    probabilities are proportional to the geometric mean of the models'. (fairseq, for one, averages
    the probabilities themselves.) Averaging the logits is the same, as they differ from the
    log-probabilities by one number for each position, which the renormalisation takes away; so
    that is what is done.

    Not a Keras model: it is not trained or saved as one. It has what a `Translator` and
    `export_saved_model` need of a `Transformer`, and models may differ in everything but their
    vocabularies: `Translator(Ensemble([first, second]), tokenizer)`.

    Args:
        models: list of `Transformer`s. The same ids must mean the same in all of them; that the
            numbers of ids agree is checked.

    Attributes:
        models: tuple of the models.
        config: the `TransformerConfig` of the first, its `max_length` the smallest of all.
        dtype_policy: dtype policy of the first.

    Raises:
        ValueError: if there is no model, or the numbers of source or target ids differ.

    Example:

    >>> from keras_transformer.models import Ensemble, Transformer
    >>> models = [Transformer.from_preset("tiny", vocab_size=300) for _ in range(2)]
    >>> ids = ops.array([[5, 6, 3]])
    >>> logits = Ensemble(models)({"source": ids, "target": ids})
    >>> mean = (models[0]({"source": ids, "target": ids})
    ...         + models[1]({"source": ids, "target": ids})) / 2
    >>> float(ops.max(ops.abs(logits - mean))) < 1e-6
    True

    Reference: Sutskever et al. (2014), "Sequence to Sequence Learning with Neural Networks",
        section 3.6.
    """

    def __init__(self, models):
        self.models = tuple(models)
        if not self.models:
            raise ValueError("An ensemble needs at least one model. Received: models=[]")
        sizes = [(m.config.vocab_size, m.config.output_vocab_size) for m in self.models]
        if len(set(sizes)) > 1:
            raise ValueError(
                "The models of an ensemble must have the same vocabularies. Received: models with "
                f"(source, target) vocabulary sizes {', '.join(map(str, sizes))}"
            )
        first = self.models[0]
        lengths = [m.config.max_length for m in self.models if m.config.max_length is not None]
        self.config = dataclasses.replace(first.config, max_length=min(lengths, default=None))
        self.dtype_policy = first.dtype_policy

    @property
    def weights(self):
        """The weights of all models."""
        return [weight for model in self.models for weight in model.weights]

    @property
    def variables(self):
        """The variables of all models."""
        return [variable for model in self.models for variable in model.variables]

    def count_params(self):
        """Return the number of parameters of all models."""
        return sum(model.count_params() for model in self.models)

    def save_weights(self, path):
        """Raise a `UserError`: an ensemble has no file of its own, its models have.

        Args:
            path: Of the file.
        """
        raise UserError(
            "An ensemble is not saved as one model: save each of its models in a directory of its "
            f"own. Received: path={str(path)!r}"
        )

    def __call__(self, inputs, training=False):
        """Return the averaged logits `[batch, target_length, target vocabulary]`.

        Args:
            inputs: As of a `Transformer`.
            training: Whether to drop.
        """
        return _mean([model(inputs, training=training) for model in self.models])

    def start_decoding(self, source, width=1, max_length=None):
        """Return the states of all models, as `Transformer.start_decoding` does of one.

        Args:
            source: int32 `[batch, source_length]`.
            width: Rows of each sentence, such as its beams.
            max_length: Longest target.

        Returns:
            A list of states.
        """
        return [model.start_decoding(source, width, max_length) for model in self.models]

    def decode_step(self, tokens, rows, state):
        """Return the averaged logits that follow `tokens`, and the new states.

        Args:
            tokens: int32 `[batch * width]`.
            rows: int32 `[batch * width]` or None, as in `Transformer.decode_step`.
            state: From `start_decoding` or the last call.

        Returns:
            Logits `[batch * width, target vocabulary]`, and the states.
        """
        steps = [
            model.decode_step(tokens, rows, model_state)
            for model, model_state in zip(self.models, state, strict=True)
        ]
        return _mean([logits for logits, _ in steps]), [new_state for _, new_state in steps]

    def keep_sentences(self, state, sentences):
        """Return the states of decoding some sentences of a batch alone.

        Args:
            state: From `start_decoding` or `decode_step`.
            sentences: int32 `[kept]`, as in `Transformer.keep_sentences`.

        Returns:
            A list of states.
        """
        return [
            model.keep_sentences(model_state, sentences)
            for model, model_state in zip(self.models, state, strict=True)
        ]

    def attention_scores(self, source, target):
        """Return the attention weights of every block, the heads of all models side by side.

        Args:
            source: int32 `[batch, source_length]`.
            target: int32 `[batch, target_length]`, beginning with BOS.

        Returns:
            A dict as of `Transformer.attention_scores`, with blocks counted from the last: as many
            as the shallowest model has.
        """
        scores = [model.attention_scores(source, target) for model in self.models]
        return {
            name: [
                ops.concatenate([ops.cast(heads, "float32") for heads in blocks], axis=1)
                for blocks in _aligned([model_scores[name] for model_scores in scores])
            ]
            for name in scores[0]
        }


def _aligned(lists):
    """Zips lists from their ends, in their own order; the longer ones lose their first items."""
    shortest = min(map(len, lists))
    return zip(*(items[len(items) - shortest :] for items in lists), strict=True)


def _mean(logits):
    return sum(logits[1:], start=logits[0]) / len(logits)
