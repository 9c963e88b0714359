"""Translator: translates text with a model, its tokenizers and a search."""

from collections.abc import Sequence
from typing import ClassVar

from keras import ops

from keras_transformer.data.special_tokens import EOS_ID
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding import BeamSearch
from keras_transformer.decoding.search import Search
from keras_transformer.inference import inputs
from keras_transformer.inference.alignment import Alignment, align_words, layer_index
from keras_transformer.inference.batch_inference import one_answer
from keras_transformer.inference.pipeline import Pipeline, Progress
from keras_transformer.inference.results import Hypothesis, Score
from keras_transformer.inference.sentence_profile import SentenceProfile
from keras_transformer.inference.shortlist import Shortlist
from keras_transformer.models import Ensemble, TrainingRecipe, Transformer

__all__ = ["Alignment", "Hypothesis", "Score", "Translator"]


class Translator(Pipeline):
    """Translates text with a model, its tokenizers and a search.

    Args:
        model: a `keras_transformer.models.Transformer` or `Ensemble`.
        source_tokenizer: tokenizer of the source, with the model's `vocab_size`.
        target_tokenizer: tokenizer of the target; None if source and target share one.
        search: a `BeamSearch`, `GreedySearch` or `Sampling`; None for `BeamSearch()`.
        extra_length: maximum number of tokens in a translation (with EOS) minus the number of
            subwords in its source (without EOS), as in the paper, section 6.1.
        max_source_length: maximum number of tokens of a source, with EOS; None for 1024.
            `translate` splits longer texts; the other methods cut them, with a logged warning.
            Learned positions allow at most the model's `max_length`.
        recipe: a `TrainingRecipe` (or dict) that `save` also writes.
        sentence_profile: `SentenceProfile` of the training text; `translate` splits texts with it.

    Attributes:
        num_split: number of texts that `translate` has split so far.
        shortlist: `Shortlist` of the tokens that translations may have, for `translate` and
            `hypotheses`; None for the whole vocabulary.

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

    task: ClassVar[str] = "translation"
    settings: ClassVar[dict] = {**Pipeline.settings, "sentence_profile": SentenceProfile}

    def __init__(
        self,
        model: Transformer | Ensemble,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer | None = None,
        search: Search | None = None,
        extra_length: int = 50,
        max_source_length: int | None = None,
        recipe: TrainingRecipe | dict | None = None,
        sentence_profile: SentenceProfile | None = None,
    ):
        super().__init__(
            model,
            source_tokenizer,
            target_tokenizer,
            search or BeamSearch(),
            extra_length,
            max_source_length,
            recipe,
        )
        self.sentence_profile = sentence_profile
        self.num_split = 0

    @property
    def shortlist(self) -> Shortlist | None:
        """The tokens that translations may have; None for the whole vocabulary."""
        return self._inference.shortlist

    @shortlist.setter
    def shortlist(self, shortlist: Shortlist | None) -> None:
        self._inference.shortlist = shortlist

    def translate(
        self,
        texts: Sequence[str],
        search: Search | None = None,
        batch_size: int | None = None,
        progress: Progress | None = None,
        prefixes: Sequence[str] | None = None,
        long_texts: str = "split",
        num_streams: int = 1,
    ) -> list[str]:
        """Translates texts in batches of similar length, and returns the translations in order.

        Args:
            texts: sequence of `str`. Text without subwords (empty, white space) gives `""`.
            search: search to use instead of the translator's.
            batch_size: maximum number of texts in a batch; batches of long texts are smaller. None
                for 128, or fewer with more than two beams.
            progress: called after each batch with the numbers of finished texts and of all texts.
            prefixes: the beginning of each translation; `""` or None leaves it free. A prefix is
                split into subwords on its own, so it should end with a whole word. Spaces at its
                end are ignored.
            long_texts: treatment of texts longer than the training texts. `"split"` translates them
                in parts and joins the answers with spaces. If the model was trained on single
                sentences, each part is a sentence; otherwise a part has as many sentences as were
                usual in training. A sentence longer than any in training is split between words.
                `"truncate"` translates the text as a whole, cut at `max_source_length` with a
                logged warning. `"error"` raises an error instead of cutting.
            num_streams: number of batches that are searched at the same time, each in its own
                thread. On a CPU with TensorFlow, many texts are translated fastest with one stream
                for each core and one thread for each operation; call
                `tf.config.threading.set_intra_op_parallelism_threads(1)` before anything else.

        Returns:
            `list[str]`: a translation for every text, including its prefix.

        Raises:
            ValueError: if `texts` or `prefixes` is not a list of strings, their numbers differ, or
                `long_texts` is unknown.
            UserError: if a prefix is as long as its translation may be, or a text is too long and
                `long_texts` is `"error"`.
        """
        tokenizer, longest = self.source_tokenizer, self.max_source_length - 1  # and EOS
        sources = inputs.SourceParts(texts, tokenizer, longest, long_texts, self.sentence_profile)
        self.num_split += sources.num_split
        search, prefixes = one_answer(search or self.search), sources.spread(prefixes)
        answers = self._translate(
            sources.ids, sources.owners, search, batch_size, progress, prefixes, num_streams
        )
        return sources.join([hypotheses[0].text for hypotheses in answers])

    def hypotheses(
        self,
        texts: Sequence[str],
        search: Search | None = None,
        batch_size: int | None = None,
        progress: Progress | None = None,
        prefixes: Sequence[str] | None = None,
        num_streams: int = 1,
    ) -> list[list[Hypothesis]]:
        """Translates texts and returns all answers of the search, with their scores.

        Args:
            texts: as in `translate`, but texts longer than `max_source_length` are cut, with a
                logged warning, because the answers to parts of a text cannot be ranked together.
                Another warning counts the texts of several sentences that `translate` would split.
            search, batch_size, progress, prefixes, num_streams: as in `translate`.

        Returns:
            A list of `Hypothesis` for every text, best first; `search.n_best` of them for
            a `BeamSearch`. Text without subwords has one hypothesis, `""` with score 0. If the
            constraints allow no answer, the hypothesis is `""` with score minus infinity.
        """
        longest, profile = self.max_source_length - 1, self.sentence_profile
        subwords = inputs.whole_sources(texts, self.source_tokenizer, longest, profile)
        owners, search = range(len(subwords)), search or self.search
        return self._translate(
            subwords, owners, search, batch_size, progress, prefixes, num_streams
        )

    def _translate(self, subwords, owners, search, batch_size, progress, prefixes, num_streams):
        """Translates sources given as ids; `owners` has the index of the text of each source."""
        num_subwords = ops.convert_to_tensor([len(ids) for ids in subwords], "int32")
        limits = ops.convert_to_numpy(self.max_lengths(num_subwords)).tolist()
        answers = self._search(
            [ids or None for ids in subwords],
            limits,
            search,
            batch_size,
            num_streams,
            progress,
            owners,
            prefixes=inputs.encode_prefixes(self.target_tokenizer, prefixes, subwords, limits),
        )
        return [hypotheses or [Hypothesis("", 0.0, 0.0, 0)] for hypotheses in answers]

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> list[Score]:
        """Scores given translations by their probability.

        Args:
            sources: sequence of `str`; cut at `max_source_length`, with a logged warning.
            targets: sequence of `str`, one for each source. An empty target is EOS alone.
            batch_size, progress: as in `translate`.

        Returns:
            A `Score` for every pair: log-probabilities (natural logarithms, without length penalty)
            of the whole target and of each token.

        Raises:
            ValueError: if there are not as many targets as sources.
            UserError: if a target is longer than the model's learned positions.
        """
        longest = self.max_source_length - 1
        sources = inputs.whole_sources(sources, self.source_tokenizer, longest)
        targets = self.target_tokenizer.encode_batch(inputs.checked_texts("targets", targets))
        inputs.check_targets("score", sources, targets, self.model.config.max_length)
        scores = [Score(0.0, 0)] * len(sources)
        found = self._inference.log_probabilities(sources, targets, batch_size, progress)
        for index, value, values in found:
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

        Words are separated by white space. Each target word is aligned with the source word that
        receives the most attention at the positions that predict the target word's subwords. The
        attention is the mean over the heads of one layer. This needs no further training, but is
        less exact than a trained aligner.

        Args:
            sources: sequence of `str`; cut at `max_source_length`, with a logged warning.
            translations: sequence of `str`, one for each source, such as `translate` returns.
            layer: index of the decoder block; negative numbers count from the end. The last but one
                is the usual choice; with a single block, -2 is also allowed.
            batch_size, progress: as in `translate`.

        Returns:
            An `Alignment` for every pair.

        Raises:
            ValueError: if there are not as many translations as sources, or no such layer.
            UserError: if a translation is longer than the model's learned positions.

        Reference: Garg et al. (2019), https://arxiv.org/abs/1909.02074.
        """
        layer = layer_index(layer, self.model.config.num_decoder_layers)
        sources, source_words = inputs.encode_words(self.source_tokenizer, "sources", sources)
        sources = inputs.cut_sources(sources, self.max_source_length - 1, inputs.CUT_ADVICE)
        tokenizer = self.target_tokenizer
        targets, target_words = inputs.encode_words(tokenizer, "translations", translations)
        inputs.check_targets("align", sources, targets, self.model.config.max_length)
        alignments = {}
        found = self._inference.cross_attention(sources, targets, layer, batch_size, progress)
        for index, attention in found:
            attention = attention[: len(targets[index]), : len(sources[index])]
            alignments[index] = align_words(attention, source_words[index], target_words[index])
        return [alignments[index] for index in range(len(sources))]
