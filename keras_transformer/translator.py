"""Translator: a model, its tokenizers and a search, from text to text."""

import logging
from collections.abc import Callable, Sequence

import numpy as np
from keras import ops

from keras_transformer.batch_inference import BatchInference, cut_batches, one_answer
from keras_transformer.data.special_tokens import EOS_ID
from keras_transformer.decoding import BeamSearch, search_to_dict
from keras_transformer.errors import UserError
from keras_transformer.layers.checks import check_positive_integer
from keras_transformer.model_directory import (
    read_config,
    read_model,
    read_recipe,
    read_tokenizers,
)
from keras_transformer.model_directory_writing import write_model_directory
from keras_transformer.translation_result import Hypothesis, Score, to_hypotheses

__all__ = ["Hypothesis", "Score", "Translator"]

_LOGGER = logging.getLogger(__name__)

DEFAULT_MAX_SOURCE_LENGTH = 1024
# Bounds the memory of a batch: padded source and target positions of all its rows and beams.
_MAX_BATCH_TOKENS = 32_768
# Bounds the logits of a batch that is scored, `[batch, length, vocabulary]`: 256 MB.
_MAX_BATCH_LOGITS = 2**26

_SETTINGS = ("extra_length", "max_source_length")
Progress = Callable[[int, int], object]


class Translator:
    """Translates text with a model, its tokenizers and a search.

    Args:
        model: a `keras_transformer.models.Transformer`.
        source_tokenizer: tokenizer of the source, of the model's `vocab_size`.
        target_tokenizer: tokenizer of the target; None for one that both share.
        search: a `BeamSearch`, `GreedySearch` or `Sampling`; None for `BeamSearch()`.
        extra_length: a translation has at most so many tokens more than its own source has
            subwords (without EOS), as in the paper, section 6.1.
        max_source_length: longer sources are cut to so many tokens (EOS counted), with a logged
            warning; None for 1024. Learned positions allow at most the model's `max_length`.
        recipe: a `TrainingRecipe` (or dict) that `save` writes as well.

    Raises:
        ValueError: if a tokenizer does not fit the model, or a number is not positive.

    Example:

    >>> from keras_transformer import Transformer, Translator
    >>> from keras_transformer.data import train_sentencepiece
    >>> tokenizer = train_sentencepiece(["a red house", "ein rotes Haus"], vocab_size=280)
    >>> translator = Translator(Transformer.from_preset("tiny", vocab_size=280), tokenizer)
    >>> translator.translate([""])
    ['']

    Reference: Vaswani et al. (2017), section 6.1.
    """

    def __init__(
        self,
        model,
        source_tokenizer,
        target_tokenizer=None,
        search=None,
        extra_length=50,
        max_source_length=None,
        recipe=None,
    ):
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer or source_tokenizer
        self.search = search or BeamSearch()
        self.extra_length = extra_length
        self.recipe = recipe
        self._inference = BatchInference(model)
        check_positive_integer("extra_length", extra_length)
        if max_source_length is None:
            max_source_length = DEFAULT_MAX_SOURCE_LENGTH
        check_positive_integer("max_source_length", max_source_length)
        positions = model.config.max_length or max_source_length
        self.max_source_length = min(max_source_length, positions)
        _check_vocabulary("source", self.source_tokenizer, model.config.vocab_size)
        _check_vocabulary("target", self.target_tokenizer, model.config.output_vocab_size)

    @classmethod
    def load(cls, directory, dtype=None) -> "Translator":
        """Loads a model directory, as `save` and `keras-transformer train` write it.

        Args:
            directory: the model directory.
            dtype: dtype policy to compute in, such as `"bfloat16"`; None for the global one.

        Returns:
            `Translator`.

        Raises:
            UserError: if a file is missing, damaged, or does not fit the others.
        """
        config = read_config(directory)
        source_tokenizer, target_tokenizer = read_tokenizers(directory, config)
        settings = {name: config[name] for name in _SETTINGS if config.get(name) is not None}
        settings |= {"search": config["search"], "recipe": read_recipe(directory)}
        model = read_model(directory, config, dtype=dtype)
        try:
            return cls(model, source_tokenizer, target_tokenizer, **settings)
        except (ValueError, TypeError) as error:
            raise UserError(f"{directory}/config.json: {error}") from error

    def save(self, directory):
        """Writes a model directory: config, weights, tokenizers, and the recipe if there is one.

        Args:
            directory: where to; files of other names that are there already stay.

        Returns:
            `pathlib.Path`: the directory.

        Raises:
            UserError: if a file there would be read as a part of the model and is none.
        """
        is_shared = self.target_tokenizer is self.source_tokenizer
        settings = {name: getattr(self, name) for name in _SETTINGS}
        return write_model_directory(
            directory,
            model=self.model,
            source_tokenizer=self.source_tokenizer,
            target_tokenizer=None if is_shared else self.target_tokenizer,
            settings={"search": search_to_dict(self.search), **settings},
            recipe=self.recipe,
        )

    def translate(
        self,
        texts: Sequence[str],
        search=None,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> list[str]:
        """Translates texts: sorted by length, in batches, and put back in order.

        Args:
            texts: sequence of `str`. Text without subwords (empty, white space) gives `""`.
            search: search to use instead of the translator's.
            batch_size: most texts in a batch; of long texts fewer are taken.
            progress: called after each batch with the numbers of texts done and in all.

        Returns:
            `list[str]`: a translation for every text.

        Raises:
            ValueError: if `texts` is a single string, or holds something else than strings.
        """
        answers = self.hypotheses(texts, one_answer(search or self.search), batch_size, progress)
        return [hypotheses[0].text for hypotheses in answers]

    def hypotheses(
        self,
        texts: Sequence[str],
        search=None,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> list[list[Hypothesis]]:
        """Translates texts and returns all answers of the search, with their scores.

        Args:
            texts, search, batch_size, progress: as in `translate`.

        Returns:
            A list of `Hypothesis` for every text, best first; `search.n_best` of them for
            a `BeamSearch`. Text without subwords has the one hypothesis `""`, with score 0.
        """
        search, subwords = search or self.search, self._encode_sources(texts)
        answers = [[Hypothesis("", 0.0, 0.0, 0)] for _ in subwords]
        todo = [index for index, ids in enumerate(subwords) if ids]
        sizes = [search.width * (2 * len(subwords[i]) + self.extra_length) for i in todo]
        num_done = len(subwords) - len(todo)
        for number, places in enumerate(cut_batches(sizes, batch_size, _MAX_BATCH_TOKENS)):
            indices = [todo[place] for place in places]
            found = self._search_batch([subwords[index] for index in indices], search, number)
            for index, hypotheses in zip(indices, found, strict=True):
                answers[index] = hypotheses
            num_done += len(indices)
            if progress is not None:
                progress(num_done, len(subwords))
        return answers

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> list[Score]:
        """Returns how probable the model finds given translations.

        Args:
            sources: sequence of `str`; cut at `max_source_length` as in `translate`.
            targets: sequence of `str`, as many. An empty one is EOS alone.
            batch_size, progress: as in `translate`.

        Returns:
            A `Score` for every pair: natural logarithm, without length penalty.

        Raises:
            ValueError: if there are not as many targets as sources.
            UserError: if a target is longer than the model's learned positions.
        """
        sources = self._encode_sources(sources)
        targets = self.target_tokenizer.encode_batch(_checked_texts("targets", targets))
        if len(sources) != len(targets):
            raise ValueError(
                "score() needs as many targets as sources. "
                f"Received: {len(sources)} sources and {len(targets)} targets"
            )
        self._check_target_lengths(targets)
        sizes = [max(len(s), len(t)) + 1 for s, t in zip(sources, targets, strict=True)]
        max_tokens = _MAX_BATCH_LOGITS // self.model.config.output_vocab_size
        scores = [Score(0.0, 0)] * len(sources)
        num_done = 0
        for indices in cut_batches(sizes, batch_size, min(max_tokens, _MAX_BATCH_TOKENS)):
            found = self._inference.log_probabilities(
                [[*sources[index], EOS_ID] for index in indices],
                [targets[index] for index in indices],
            )
            for index, value in zip(indices, found, strict=True):
                scores[index] = Score(float(value), len(targets[index]) + 1)
            num_done += len(indices)
            if progress is not None:
                progress(num_done, len(sources))
        return scores

    def max_lengths(self, num_subwords):
        """Returns the most tokens each translation may have, EOS included.

        Args:
            num_subwords: int32 `[batch]`, subwords of each source without EOS.

        Returns:
            int32 `[batch]`: `num_subwords + extra_length`, at most the model's `max_length`;
            1 for a source without subwords.
        """
        limits = num_subwords + self.extra_length
        if self.model.config.max_length is not None:
            limits = ops.minimum(limits, self.model.config.max_length)
        return ops.cast(ops.where(ops.equal(num_subwords, 0), 1, limits), "int32")

    def _encode_sources(self, texts) -> list[list[int]]:
        """Ids of each source without EOS, cut at `max_source_length`."""
        subwords = self.source_tokenizer.encode_batch(_checked_texts("texts", texts))
        longest = self.max_source_length - 1  # and EOS
        num_cut = sum(len(ids) > longest for ids in subwords)
        if num_cut:
            message = "%d of %d sources have more than %d subwords and were cut to that length."
            _LOGGER.warning(message, num_cut, len(subwords), longest)
        return [ids[:longest] for ids in subwords]

    def _search_batch(self, subwords, search, number) -> list[list[Hypothesis]]:
        limits = ops.convert_to_numpy(self.max_lengths(np.array([len(ids) for ids in subwords])))
        sources = [[*ids, EOS_ID] for ids in subwords]
        result = self._inference.search(sources, limits.tolist(), search, seed_offset=number)
        return to_hypotheses(result, self.target_tokenizer)

    def _check_target_lengths(self, targets):
        limit = self.model.config.max_length
        for index, ids in enumerate(targets):
            if limit is not None and len(ids) + 1 > limit:
                raise UserError(
                    f"Target {index} (counted from 0) has {len(ids) + 1} tokens with EOS; the "
                    f"model has learned positions for at most {limit}."
                )


def _checked_texts(name, texts) -> list[str]:
    if isinstance(texts, str | bytes):
        raise ValueError(
            f"{name} must be a list of strings; put one text into a list. "
            f"Received: {name}={texts!r}"
        )
    texts = list(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            message = f"{name} must be a list of strings."
            raise ValueError(f"{message} Received: {name}[{index}]={text!r}")
    return texts


def _check_vocabulary(side, tokenizer, vocab_size):
    if tokenizer.vocab_size != vocab_size:
        raise ValueError(
            f"The {side} tokenizer must have as many pieces as the model has {side} ids, "
            f"{vocab_size}. Received: {side}_tokenizer.vocab_size={tokenizer.vocab_size}"
        )
