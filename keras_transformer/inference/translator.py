"""Translator: a model, its tokenizers and a search, from text to text."""

import collections
from collections.abc import Callable, Sequence

import numpy as np
from keras import ops

from keras_transformer.data.special_tokens import EOS_ID
from keras_transformer.decoding import BeamSearch, search_to_dict
from keras_transformer.inference import memory as batch_memory
from keras_transformer.inference.alignment import Alignment, align_words, layer_index
from keras_transformer.inference.batch_inference import BatchInference, answer_limits, one_answer
from keras_transformer.inference.inputs import (
    check_targets,
    check_vocabulary,
    checked_texts,
    encode_prefixes,
    encode_words,
)
from keras_transformer.inference.loading import SETTINGS, load_directories
from keras_transformer.inference.long_texts import (
    CUT_ADVICE,
    LARGEST_LENGTH,
    SourceParts,
    cut_sources,
    source_limit,
    whole_sources,
)
from keras_transformer.inference.memory import cut_pair_batches
from keras_transformer.inference.results import Hypothesis, Score, to_hypotheses
from keras_transformer.inference.saving import write_model_directory
from keras_transformer.layers.checks import check_positive_integer

__all__ = ["Alignment", "Hypothesis", "Score", "Translator"]


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
        max_source_length: the most tokens of a source, EOS counted; None for 1024. `translate`
            splits longer texts, the other methods cut them, with a logged warning. Learned
            positions allow at most the model's `max_length`.
        recipe: a `TrainingRecipe` (or dict) that `save` writes as well.
        sentence_profile: `SentenceProfile` of the training text, by which `translate` splits texts.

    Attributes:
        num_split: number of texts that `translate` has split so far.

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
        sentence_profile=None,
    ):
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer or source_tokenizer
        self.search = search or BeamSearch()
        self.extra_length = extra_length
        self.recipe = recipe
        self.sentence_profile = sentence_profile
        self.num_split = 0
        self._inference = BatchInference(model)
        check_positive_integer("extra_length", extra_length, LARGEST_LENGTH)
        self.max_source_length = source_limit(max_source_length, model.config.max_length)
        check_vocabulary("source", self.source_tokenizer, model.config.vocab_size)
        check_vocabulary("target", self.target_tokenizer, model.config.output_vocab_size)

    @classmethod
    def load(cls, directory, dtype=None) -> "Translator":
        """Loads a model directory, as `save` and `keras-transformer train` write it, or several.

        Args:
            directory: the model directory; or a list of them, whose models become an `Ensemble`.
                Their vocabularies must be the same; the settings, such as the search, are those of
                the first.
            dtype: dtype policy to compute in, such as `"bfloat16"`; None for the global one.

        Returns:
            `Translator`.

        Raises:
            ValueError: for a list without a directory.
            UserError: if a file is missing, damaged, or does not fit the others, the
                vocabularies of several directories differ, or one holds a parser.
        """
        return load_directories(cls, directory, dtype)

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
        settings = {name: getattr(self, name) for name in SETTINGS}
        if self.sentence_profile is not None:
            settings["sentence_profile"] = self.sentence_profile.to_dict()
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
        prefixes: Sequence[str] | None = None,
        long_texts: str = "split",
        num_streams: int = 1,
    ) -> list[str]:
        """Translates texts: sorted by length, in batches, and put back in order.

        Args:
            texts: sequence of `str`. Text without subwords (empty, white space) gives `""`.
            search: search to use instead of the translator's.
            batch_size: most texts in a batch; of long texts fewer are taken.
            progress: called after each batch with the numbers of texts done and in all.
            prefixes: how each translation begins, `""` for anyhow; None for all anyhow. A prefix
                is split into subwords on its own: it had better end with a word, though the
                translation may go on with the rest of one, and a space at its end means nothing.
            long_texts: what becomes of texts longer than the model is used to. `"split"`: they are
                translated in parts, and the answers joined with spaces: by single sentences if the
                training text was so, else by as many sentences as were usual there; a sentence
                longer than any there is split between words. `"truncate"`: as a whole, cut at
                `max_source_length` with a logged warning. `"error"`: as a whole, or an error.
            num_streams: batches that are searched at the same time, each by a thread of its own.
                On a CPU with TensorFlow, as many as there are cores, where an operation has one
                thread (`tf.config.threading.set_intra_op_parallelism_threads(1)` before anything
                is computed), take the least time for many texts.

        Returns:
            `list[str]`: a translation for every text, its prefix included.

        Raises:
            ValueError: if `texts` or `prefixes` is a single string, or holds something else than
                strings, there are not as many prefixes as texts, or no such `long_texts`.
            UserError: if a prefix leaves its translation no room, or a text is too long and that
                is an error.
        """
        tokenizer, longest = self.source_tokenizer, self.max_source_length - 1  # and EOS
        sources = SourceParts(texts, tokenizer, longest, long_texts, self.sentence_profile)
        self.num_split += sources.num_split
        search, prefixes = one_answer(search or self.search), sources.spread(prefixes)
        answers = self._search(
            sources.ids, sources.owners, search, batch_size, progress, prefixes, num_streams
        )
        return sources.join([hypotheses[0].text for hypotheses in answers])

    def hypotheses(
        self,
        texts: Sequence[str],
        search=None,
        batch_size: int = 32,
        progress: Progress | None = None,
        prefixes: Sequence[str] | None = None,
        num_streams: int = 1,
    ) -> list[list[Hypothesis]]:
        """Translates texts and returns all answers of the search, with their scores.

        Args:
            texts: as in `translate`, but longer ones than `max_source_length` are cut, with a
                logged warning: the answers to parts of a text are no answers to the text. Texts of
                several sentences that `translate` would split are warned of too.
            search, batch_size, progress, prefixes, num_streams: as in `translate`.

        Returns:
            A list of `Hypothesis` for every text, best first; `search.n_best` of them for
            a `BeamSearch`. Text without subwords has the one hypothesis `""`, with score 0; a text
            for which the search's constraints allow nothing `""` with score minus infinity.
        """
        subwords = self._encode_sources(texts, self.sentence_profile)
        owners, search = range(len(subwords)), search or self.search
        return self._search(subwords, owners, search, batch_size, progress, prefixes, num_streams)

    def _search(self, subwords, owners, search, batch_size, progress, prefixes, num_streams):
        """Searches for the answers to sources in ids; `owners` has the text of each."""
        num_subwords = np.array([len(ids) for ids in subwords], "int32")
        limits = ops.convert_to_numpy(self.max_lengths(num_subwords)).tolist()
        prefixes = encode_prefixes(self.target_tokenizer, prefixes, subwords, limits)
        answers = [[Hypothesis("", 0.0, 0.0, 0)] for _ in subwords]
        todo = [index for index, ids in enumerate(subwords) if ids]
        num_texts = owners[-1] + 1 if owners else 0
        num_left = collections.Counter(owners[index] for index in todo)  # sources of each text
        num_done = num_texts - len(num_left)
        for places, result in self._inference.search_batches(
            [[*subwords[index], EOS_ID] for index in todo],
            [limits[index] for index in todo],
            search,
            batch_size,
            batch_memory.MAX_BATCH_TOKENS,
            num_streams,
            prefixes=[prefixes[index] for index in todo],
        ):
            found = to_hypotheses(result, self.target_tokenizer)
            for place, hypotheses in zip(places, found, strict=True):
                index = todo[place]
                answers[index] = hypotheses
                num_left[owners[index]] -= 1
                num_done += not num_left[owners[index]]
            if progress is not None:
                progress(num_done, num_texts)
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
            sources: sequence of `str`; cut at `max_source_length`, with a logged warning.
            targets: sequence of `str`, as many. An empty one is EOS alone.
            batch_size, progress: as in `translate`.

        Returns:
            A `Score` for every pair: natural logarithms, without length penalty, of the whole
            target and of each token.

        Raises:
            ValueError: if there are not as many targets as sources.
            UserError: if a target is longer than the model's learned positions.
        """
        sources = self._encode_sources(sources)
        targets = self.target_tokenizer.encode_batch(checked_texts("targets", targets))
        check_targets("score", sources, targets, self.model.config.max_length)
        logits = batch_memory.MAX_BATCH_LOGITS // self.model.config.output_vocab_size
        scores = [Score(0.0, 0)] * len(sources)
        max_tokens = min(logits, batch_memory.MAX_BATCH_TOKENS)
        for indices in cut_pair_batches(sources, targets, batch_size, max_tokens, progress):
            found = self._inference.log_probabilities(
                [[*sources[index], EOS_ID] for index in indices],
                [targets[index] for index in indices],
            )
            for index, value, values in zip(indices, *found, strict=True):
                tokens = (*targets[index], EOS_ID)
                of_tokens = tuple(values[: len(tokens)].tolist())
                scores[index] = Score(float(value), len(tokens), tokens, of_tokens)
        return scores

    def align(
        self,
        sources: Sequence[str],
        translations: Sequence[str],
        layer: int = -2,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> list[Alignment]:
        """Aligns the words of translations with those of their sources, by the model's attention.

        Words are what white space separates. Each target word goes to the source word that gets
        most of the attention, averaged over the heads of one layer, at the positions that predict
        its subwords. This needs no training for it, and is less exact than a trained aligner.

        Args:
            sources: sequence of `str`; cut at `max_source_length`, with a logged warning.
            translations: sequence of `str`, as many, such as `translate` gave.
            layer: block of the decoder, counted from 0, or from the end with a minus. The last but
                one is the usual choice; a decoder of a single layer has that one.
            batch_size, progress: as in `translate`.

        Returns:
            An `Alignment` for every pair.

        Raises:
            ValueError: if there are not as many translations as sources, or no such layer.
            UserError: if a translation is longer than the model's learned positions.

        Reference: Garg et al. (2019), https://arxiv.org/abs/1909.02074.
        """
        layer = layer_index(layer, self.model.config.num_decoder_layers)
        sources, source_words = encode_words(self.source_tokenizer, "sources", sources)
        sources = cut_sources(sources, self.max_source_length - 1, CUT_ADVICE)
        targets, target_words = encode_words(self.target_tokenizer, "translations", translations)
        check_targets("align", sources, targets, self.model.config.max_length)
        alignments = [None] * len(sources)
        for indices in cut_pair_batches(
            sources, targets, batch_size, batch_memory.MAX_ALIGNED_TOKENS, progress
        ):
            found = self._inference.cross_attention(
                [[*sources[index], EOS_ID] for index in indices],
                [targets[index] for index in indices],
                layer,
            )
            for index, attention in zip(indices, found, strict=True):
                attention = attention[: len(targets[index]), : len(sources[index])]
                words = source_words[index], target_words[index]
                alignments[index] = align_words(attention, *words)
        return alignments

    def max_lengths(self, num_subwords):
        """Returns the most tokens each translation may have, EOS included.

        Args:
            num_subwords: int32 `[batch]`, subwords of each source without EOS.

        Returns:
            int32 `[batch]`: `num_subwords + extra_length`, at most the model's `max_length`;
            1 for a source without subwords.
        """
        return answer_limits(num_subwords, self.extra_length, self.model.config.max_length)

    def _encode_sources(self, texts, profile=None) -> list[list[int]]:
        return whole_sources(texts, self.source_tokenizer, self.max_source_length - 1, profile)
