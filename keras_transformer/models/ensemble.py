"""Several models of one vocabulary that translate together, and copies of one or several models."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_transformer.errors import UserError
from keras_transformer.layers.composite_layer import quantize_parts, quantized_parts
from keras_transformer.layers.effective_weights import copy_weights
from keras_transformer.layers.tensors import Tensor
from keras_transformer.models.transformer import Transformer


class Ensemble:
    """The average of the logits of models that share their vocabularies, for decoding and scoring.

    The probabilities are proportional to the geometric mean of the models' probabilities. (fairseq
    averages the probabilities themselves.) An ensemble is no Keras model: it cannot be trained or
    saved as one. A `Translator` and `export_saved_model` take it in place of a `Transformer`.

    Args:
        models: List of `Transformer`s. An id must mean the same token in all of them; only the
            vocabulary sizes are checked.

    Attributes:
        models: Tuple of the models.
        config: The `TransformerConfig` of the first model, with the smallest `max_length` and
            numbers of layers of all.
        dtype_policy: Dtype policy of the first model.

    Example:

    >>> from keras_transformer.models import Ensemble, Transformer
    >>> ensemble = Ensemble([Transformer.from_preset("tiny", vocab_size=300) for _ in range(2)])
    >>> ids = ops.array([[5, 6, 3]])
    >>> ops.shape(ensemble({"source": ids, "target": ids}))
    (1, 3, 300)

    Reference: Sutskever et al. (2014), section 3.6.
    """

    def __init__(self, models: Sequence[Transformer]) -> None:
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
        least: dict = {
            name: min(getattr(model.config, name) for model in self.models)
            for name in ("num_encoder_layers", "num_decoder_layers")
        }
        least["max_length"] = min(lengths, default=None)
        self.config = dataclasses.replace(first.config, **least)
        self.dtype_policy = first.dtype_policy

    @property
    def weights(self) -> list:
        """The weights of all models."""
        return [weight for model in self.models for weight in model.weights]

    @property
    def variables(self) -> list:
        """The variables of all models."""
        return [variable for model in self.models for variable in model.variables]

    def count_params(self) -> int:
        """Returns the number of parameters of all models."""
        return sum(model.count_params() for model in self.models)

    def save_weights(self, path: Any) -> None:
        """Raises a `UserError`; the arguments are those of `Transformer.save_weights`."""
        rule = "An ensemble is not saved as one model: save each of its models in its own directory"
        raise UserError(f"{rule}. Received: path={str(path)!r}")

    def __call__(self, inputs: dict, training: bool = False) -> Tensor:
        """Returns the averaged logits; the arguments are those of `Transformer`."""
        return _mean([model(inputs, training=training) for model in self.models])

    def start_decoding(self, source: Tensor, *args: Any, **kwargs: Any) -> list:
        """Returns the models' states; the arguments are those of `Transformer.start_decoding`."""
        return [model.start_decoding(source, *args, **kwargs) for model in self.models]

    def output_embeddings(self, token_ids: Tensor) -> list:
        """Returns the models' embeddings; the arguments are those of `Transformer`'s."""
        return [model.output_embeddings(token_ids) for model in self.models]

    def decode_step(
        self,
        tokens: Tensor,
        parents: Tensor | None,
        state: list,
        output_embeddings: list | None = None,
    ) -> tuple[Tensor, list]:
        """Returns the mean logits and the states; the arguments are those of `Transformer`'s."""
        embeddings = output_embeddings or [None] * len(self.models)
        steps = [
            model.decode_step(tokens, parents, model_state, model_embeddings)
            for model, model_state, model_embeddings in zip(
                self.models, state, embeddings, strict=True
            )
        ]
        logits, states = zip(*steps, strict=True)
        return _mean(logits), list(states)

    def keep_sentences(self, state: list, sentences: Tensor) -> list:
        """Returns the models' states; the arguments are those of `Transformer.keep_sentences`."""
        pairs = zip(self.models, state, strict=True)
        return [model.keep_sentences(model_state, sentences) for model, model_state in pairs]

    def attention_scores(self, source: Tensor, target: Tensor) -> dict[str, list[Tensor]]:
        """Returns the attention weights of every block, with the heads of all models concatenated.

        The arguments are those of `Transformer.attention_scores`. Blocks are matched from the last
        one backwards; blocks that not all models have are left out.
        """
        all_scores = [model.attention_scores(source, target) for model in self.models]
        scores = {}
        for name in all_scores[0]:
            from_last = zip(*(reversed(blocks[name]) for blocks in all_scores), strict=False)
            blocks = [[ops.cast(heads, "float32") for heads in block] for block in from_last]
            scores[name] = [ops.concatenate(block, axis=1) for block in reversed(blocks)]
        return scores


def _mean(logits):
    return sum(logits[1:], start=logits[0]) / len(logits)


def copy_of(
    model: Transformer | Ensemble,
    dtype: str | None = None,
    model_class: type[Transformer] = Transformer,
    **changes: Any,
) -> Any:
    """Returns a copy of a model, with weights and computation in `dtype`; None for the model's.

    The copy is quantized as the model, and LoRA is merged into the matrices that are not. It is of
    `model_class`. `changes` are fields of the copy's `TransformerConfig`.
    """
    if isinstance(model, Ensemble):
        return Ensemble([copy_of(one, dtype, model_class, **changes) for one in model.models])
    config = dataclasses.replace(model.config, **changes)
    policy = model.dtype_policy if dtype is None else dtype
    copy = model_class(config, dtype=policy, initialize=False)
    quantize_parts(copy, quantized_parts(model))
    copy_weights(model, copy)
    return copy
