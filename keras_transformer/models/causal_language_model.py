"""A decoder-only language model as a functional Keras model with `generate`."""

import contextlib
import dataclasses
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_transformer.checks import check_argument, check_positive_integer
from keras_transformer.decoding import GreedySearch, SearchResult
from keras_transformer.decoding.search import CompiledFunctions, Search
from keras_transformer.layers import Decoder
from keras_transformer.layers.caches import hypotheses_of, take_entries
from keras_transformer.layers.tensors import Tensor
from keras_transformer.models.micro_batches import MicroBatchModel


@keras.saving.register_keras_serializable(package="keras_transformer")
class CausalLanguageModel(MicroBatchModel):
    """A decoder-only language model: maps token ids to logits of the next token, and generates.

    Train it with `fit` on ids that are padded at the end. Causal attention needs no mask for this
    padding, but the loss must leave it out.

    Args:
        embedding: `TiedEmbedding`, or another layer with `reverse`.
        decoder: `Decoder`, which has no cross-attention then.
        name: Name of the model.

    Call arguments:
        inputs: int32 `[batch, length]`; the outputs are logits `[batch, length, vocabulary]`.

    Example:

    >>> from keras_transformer.layers import Decoder, DecoderBlock, TiedEmbedding
    >>> decoder = Decoder([DecoderBlock(2, 64, norm="pre") for _ in range(2)])
    >>> model = keras_transformer.models.CausalLanguageModel(TiedEmbedding(100, 32), decoder)
    >>> model.generate([[2, 5, 7], [2, 9]], max_new_tokens=10).tokens.shape
    (2, 1, 10)

    Reference: Radford et al. (2018), "Improving Language Understanding by Generative Pre-Training".
    """

    def __init__(self, embedding: Any, decoder: Decoder, name: str = "language_model") -> None:
        check_argument(isinstance(decoder, Decoder), "decoder", "a `Decoder`", decoder)
        tokens = keras.Input((None,), dtype="int32", name="tokens")
        logits = embedding(decoder(embedding(tokens)), reverse=True)
        super().__init__(tokens, logits, name=name)
        self.dtype_policy = decoder.dtype_policy  # `compile` scales the loss of float16 by it.
        self.embedding, self.decoder = embedding, decoder
        self._compiled = CompiledFunctions(self)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int = 64,
        search: Search | None = None,
        eos_id: int = 3,
        pad_id: int = 0,
    ) -> SearchResult:
        """Continues prompts, each as if it were alone. The first call compiles the search.

        Args:
            prompts: Lists of one or more ids, such as `[[bos_id]]`; or an array `[batch, length]`.
                `pad_id` is ignored.
            max_new_tokens: Maximum number of tokens after each prompt, EOS included.
            search: A `GreedySearch`, `BeamSearch` or `Sampling`; None for `GreedySearch()`.
            eos_id, pad_id: Ids that end and fill a continuation.

        Returns:
            A `SearchResult` of NumPy arrays, without the prompts.

        Raises:
            ValueError: If a prompt is empty or has other values than ids of the vocabulary, or the
                tokens exceed a table of learned positions.
        """
        check_positive_integer("max_new_tokens", max_new_tokens)
        search = GreedySearch() if search is None else search
        check_argument(isinstance(search, Search), "search", "a search or None", search)
        size, ids = self.output_shape[-1], []
        with contextlib.suppress(TypeError):  # of texts, floats, or a list of ids
            ids = [[operator.index(t) for t in prompt if t != pad_id] for prompt in prompts]
        are_ids = ids and all(ids) and all(0 <= token < size for prompt in ids for token in prompt)
        check_argument(are_ids, "prompts", f"lists of one or more ids below {size:,}", prompts)
        check_argument(pad_id < size, "pad_id", f"an id below {size:,}", pad_id)
        longest = max(map(len, ids))
        limit = getattr(self.decoder.position, "max_length", math.inf) - longest
        rule = f"at most {limit}, the learned positions after a prompt of {longest}"
        check_argument(max_new_tokens <= limit, "max_new_tokens", rule, max_new_tokens)
        length = -(-longest // 16) * 16  # On JAX, each length compiles a function.
        padded = keras.utils.pad_sequences(ids, length, padding="post", value=pad_id)
        inputs = {"prompts": ops.convert_to_tensor(padded), "max_new_tokens": max_new_tokens}
        if search.is_random:  # Another seed needs no compilation.
            seed = np.int32(search.seed)  # type: ignore[attr-defined]
            inputs["seed"] = ops.convert_to_tensor(seed)
            search = dataclasses.replace(search, seed=0)  # type: ignore[call-arg]

        def run(**inputs):
            return self.generate_step(search=search, eos_id=eos_id, pad_id=pad_id, **inputs)

        ranks = {name: np.ndim(value) for name, value in inputs.items()}
        key = search, eos_id, pad_id
        compiled = self._compiled.get(key, run, ("max_new_tokens",), ranks)
        return SearchResult(*map(ops.convert_to_numpy, compiled(**inputs)))

    def generate_step(
        self,
        prompts: Tensor,
        max_new_tokens: Any,
        search: Search,
        eos_id: int = 3,
        pad_id: int = 0,
        seed: Tensor | None = None,
    ) -> SearchResult:
        """Returns the tensors of a `SearchResult`, for a compiled function or an export.

        The arguments are those of `generate`, but `prompts` are int32 `[batch, length]`, padded at
        the end, and a `seed`, int32, replaces that of a `Sampling`.
        """
        batch, length = ops.shape(prompts)
        # Padding moves to the front, so that all prompts end in the last column.
        num_padding = ops.sum(ops.cast(ops.equal(prompts, pad_id), "int32"), axis=1, keepdims=True)
        columns = (ops.arange(length, dtype="int32") - num_padding) % length
        prompts = ops.take_along_axis(prompts, columns, axis=1)
        cache_size = length + max_new_tokens if keras.config.backend() == "jax" else None

        def decode(tokens, cache, num_padding):
            start, new = cache.length, ops.shape(tokens)[1]
            positions = ops.maximum(start + ops.arange(new, dtype="int32") - num_padding, 0)
            keys = ops.arange(start + new if cache_size is None else cache_size, dtype="int32")
            options = {"padding_mask": keys >= num_padding, "positions": positions}
            return self.decoder(self.embedding(tokens), cache=cache, training=False, **options)

        def step(tokens, parents, state):
            cache, num_padding, last_tokens = state
            # A search begins with BOS; here it begins with the last token of the prompt.
            is_first = ops.equal(cache.length, length - 1)
            tokens = ops.expand_dims(ops.where(is_first, last_tokens, tokens), 1)
            states, cache = decode(tokens, cache.reorder(parents), num_padding)
            logits = self.embedding(ops.squeeze(states, 1), reverse=True)
            return logits, (cache, num_padding, last_tokens)

        def keep_sentences(state, sentences):
            cache, *others = take_entries(state, hypotheses_of(sentences, search.width))
            return (cache.merged(), *others)

        cache = self.decoder.make_cache(batch_size=batch, max_length=cache_size)
        _, cache = decode(prompts[:, :-1], cache, num_padding)
        prompt_of = ops.repeat(ops.arange(batch, dtype="int32"), search.width)
        state = take_entries((cache, num_padding, prompts[:, -1]), prompt_of)
        options: dict[str, Any] = {} if seed is None else {"seed": seed}
        options |= {"eos_id": eos_id, "pad_id": pad_id, "keep_sentences": keep_sentences}
        limits = ops.full((batch,), max_new_tokens, dtype="int32")
        return search(step, state, limits, max_new_tokens, **options)

    def get_config(self) -> dict:
        serialize = keras.saving.serialize_keras_object
        layers = {"embedding": serialize(self.embedding), "decoder": serialize(self.decoder)}
        return {**layers, "name": self.name}

    @classmethod
    def from_config(cls, config: dict, custom_objects: Mapping | None = None) -> Self:
        deserialize = keras.saving.deserialize_keras_object
        with keras.saving.custom_object_scope(custom_objects or {}):
            layers = {name: deserialize(config[name]) for name in ("embedding", "decoder")}
        return cls(**{**config, **layers})
