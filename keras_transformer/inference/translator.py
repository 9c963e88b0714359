"""Translator: translates text with a model, its tokenizers and a search."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from keras import ops

from keras_transformer.checks import check_argument, check_choice
from keras_transformer.data.tokenizer import EOS_ID, PAD_ID, Tokenizer
from keras_transformer.decoding import BeamSearch
from keras_transformer.decoding.search import Search
from keras_transformer.errors import UserError, shortened
from keras_transformer.inference.batch_inference import MAX_BATCH_TOKENS, one_answer
from keras_transformer.inference.glossary import Glossary, joins_of_pieces, without_terms_of
from keras_transformer.inference.pipeline import Pipeline, Progress, cut_sources
from keras_transformer.inference.results import Alignment, Hypothesis, Score
from keras_transformer.inference.sentences import (
    SentenceProfile,
    TextPart,
    join_parts,
    split_tags,
    split_text,
)
from keras_transformer.inference.shortlist import Shortlist
from keras_transformer.losses.cross_entropy import cross_entropy
from keras_transformer.models import Ensemble, TrainingRecipe, Transformer

_LOGGER = logging.getLogger(__name__)
_CUT_ADVICE = "; split them into sentences first, so that nothing is lost"
# Maximum size of the logits of a scored batch, `[batch, length, vocabulary]`: 256 MB.
_MAX_LOGITS = 2**26
# Maximum number of positions in an aligned batch; attention grows with the square of the length.
_MAX_ALIGNED_TOKENS = 8_192


class Translator(Pipeline):
    """Translates text with a model, its tokenizers and a search.

    Args:
        model: A `keras_transformer.models.Transformer` or `Ensemble`.
        source_tokenizer: Tokenizer of the source, with the model's `vocab_size`.
        target_tokenizer: Tokenizer of the target; None if both share one.
        search: A `BeamSearch`, `GreedySearch` or `Sampling`; None for `BeamSearch()`.
        extra_length: Maximum number of tokens in a translation (with EOS) minus the number of
            subwords in its source (without EOS).
        max_source_length: Maximum number of tokens of a source, with EOS; None for 1024.
            `translate` splits longer texts; the other methods cut them, with a logged warning.
            Learned positions allow at most the model's `max_length`.
        recipe: A `TrainingRecipe` (or dict) that `save` also writes.
        sentence_profile: `SentenceProfile` of the training text; `translate` splits texts with it.
        origin: Name and license of a model that others trained, such as `{"name": "...", "license":
            "..."}`; `save` writes them too.

    Attributes:
        glossary: `Glossary` of the terms that translations must contain; None for no terms. It is
            not saved.
        num_split: Number of texts that `translate` has split so far.

    Raises:
        ValueError: If a tokenizer does not fit the model, or a number is not positive.

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
    settings: ClassVar[dict] = {
        **Pipeline.settings,
        "sentence_profile": SentenceProfile,
        "origin": None,
    }

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
        origin: Mapping[str, str] | None = None,
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
        is_text = isinstance(origin, Mapping) and all(isinstance(v, str) for v in origin.values())
        check_argument(is_text or origin is None, "origin", "a dict of texts or None", origin)
        self.origin = origin
        self.glossary: Glossary | None = None
        self.num_split = 0

    @property
    def shortlist(self) -> Shortlist | None:
        """The `Shortlist` of `translate` and `hypotheses`; None for the whole vocabulary."""
        return self._inference.shortlist

    @shortlist.setter
    def shortlist(self, shortlist: Shortlist | None) -> None:
        self._inference.shortlist = shortlist

    @property
    def engine(self) -> Any:
        """The `export.CTranslate2Engine` that searches; None for Keras."""
        return self._inference.engine

    @engine.setter
    def engine(self, engine: Any) -> None:
        self._inference.engine = engine

    def translate(
        self,
        texts: Sequence[str],
        search: Search | None = None,
        batch_size: int | None = None,
        progress: Progress | None = None,
        prefixes: Sequence[str] | None = None,
        long_texts: str = "split",
        num_streams: int = 1,
        glossary: Glossary | None = None,
    ) -> list[str]:
        """Returns the translations of texts, which include their prefixes.

        Args:
            texts: Sequence of `str`. Text without subwords (empty, white space) gives `""`.
            search: Search to use instead of the translator's.
            batch_size: Maximum number of texts in a batch; None for 128, or fewer with more than
                two beams. Batches have texts of similar length, and fewer texts if these are long.
            progress: Called after each batch with the numbers of finished texts and of all texts.
            prefixes: The beginning of each translation, which should end with a whole word; `""`
                leaves it free, and None leaves all free. Spaces at its end are ignored.
            long_texts: Treatment of texts longer than the training texts. `"split"` translates them
                in parts and joins the answers, with spaces if the script has them. The parts are
                single sentences if the training texts were such, otherwise as many sentences as
                were usual. A sentence longer than any in training is split between words.
                `"truncate"` cuts the text at `max_source_length` with a logged warning; `"error"`
                raises an error instead.
            num_streams: Number of batches that are searched at the same time, each in its own
                thread. On a CPU with TensorFlow, one stream for each core is fastest, after
                `tf.config.threading.set_intra_op_parallelism_threads(1)`.
            glossary: `Glossary` to use instead of the translator's. Texts with its terms are
                searched with 10 beams or more, also by a `GreedySearch`.

        Raises:
            ValueError: If an argument is not as described above.
            UserError: If a prefix is as long as its translation may be, a text or its terms are too
                long, the vocabulary cannot spell a term, or terms should be sampled.
        """
        check_choice("long_texts", long_texts, ("split", "truncate", "error"))
        parts, longest = self._encode(texts), self.max_source_length - 1  # EOS is added.
        for index, [part] in enumerate(parts):
            if long_texts == "error" and len(part.ids) > longest:
                raise UserError(
                    f"Text {index} (counted from 0) has {len(part.ids):,} subwords; the model "
                    f"reads at most {longest:,}. Shorten it, or use long_texts='split' or "
                    "'truncate'."
                )
        if long_texts == "split":
            parts = [self._split(part) for [part] in parts]
        self.num_split += sum(len(text_parts) > 1 for text_parts in parts)
        search = one_answer(search or self.search)
        # After a split, only a character that has more subwords than the model reads is cut.
        answers = self._translate(
            parts, search, batch_size, progress, prefixes, num_streams, glossary
        )
        translations = iter([hypotheses[0].text for hypotheses in answers])
        return [join_parts(text_parts, translations) for text_parts in parts]

    def _encode(self, texts):
        """Returns each text as a list of one part."""
        texts = _checked_texts("texts", texts)
        encoded = self.source_tokenizer.encode_batch(texts)
        model = self.sentence_profile, self.source_tokenizer
        declared, tags = SentenceProfile.declared_tags_of(*model), SentenceProfile.tags_of(*model)
        # Tags alone are no text.
        encoded = [
            ids if split_tags(text, declared)[1] else []
            for ids, text in zip(encoded, texts, strict=True)
        ]
        pairs = zip(encoded, [split_tags(text, tags) for text in texts], strict=True)
        return [[TextPart(text, ids, tags=tags)] for ids, (tags, text) in pairs]

    def split(self, text: str) -> list[TextPart]:
        """Returns the parts of a text that `translate` translates one by one, with their tags.

        Args:
            text: As in `translate`.
        """
        [[part]] = self._encode([text])
        return self._split(part)

    def _split(self, part):
        """Returns the parts of a text: one, unless it is longer than the training texts."""
        profile, longest = self.sentence_profile, max(self.max_source_length - 1, 1)
        is_long = len(part.ids) > longest
        if profile is not None:
            longest = min(longest, max(profile.longest, 1))
            is_long = profile.is_several(part.text, len(part.ids)) or len(part.ids) > longest
        if not is_long:
            return [part]
        # The tags, or the language, are in front of every part.
        # The space after the tags belongs to the first word, in some vocabularies as a piece.
        tags = part.tags.rstrip()
        tag_ids = self.source_tokenizer.encode(tags) or [*self.source_tokenizer.beginning]

        def encode(texts):
            encoded = self.source_tokenizer.encode_batch([part.tags + text for text in texts])
            return [ids[len(tag_ids) :] for ids in encoded]

        lengths = longest, max(self.max_source_length - 1, 1)
        longest, longest_word = (max(length - len(tag_ids), 1) for length in lengths)
        parts = split_text(part.text, longest, encode, profile, longest_word)
        return [p._replace(ids=p.ids and tag_ids + p.ids, tags=part.tags) for p in parts]

    def hypotheses(
        self,
        texts: Sequence[str],
        search: Search | None = None,
        batch_size: int | None = None,
        progress: Progress | None = None,
        prefixes: Sequence[str] | None = None,
        num_streams: int = 1,
        glossary: Glossary | None = None,
    ) -> list[list[Hypothesis]]:
        """Returns all answers of the search to each text as `Hypothesis`, best first.

        A `BeamSearch` finds `n_best` of them. Text without subwords has one hypothesis, `""` with
        score 0. If the constraints allow no answer, it is `""` with score minus infinity.

        Args:
            texts: As in `translate`, but texts longer than `max_source_length` are cut, because the
                answers to parts of a text cannot be ranked together. Logged warnings count them,
                and texts of several sentences that `translate` would split.
            search, batch_size, progress, prefixes, num_streams, glossary: As in `translate`.
        """
        parts, profile, num_several = self._encode(texts), self.sentence_profile, 0
        if profile is not None:
            num_several = sum(profile.is_several(part.text, len(part.ids)) for [part] in parts)
        if num_several:
            message = "%d of %d texts have more sentences than the texts of the training and are "
            message += "translated as a whole; split them into sentences first."
            _LOGGER.warning(message, num_several, len(parts))
        search = search or self.search
        return self._translate(
            parts, search, batch_size, progress, prefixes, num_streams, glossary, _CUT_ADVICE
        )

    def _translate(
        self, parts, search, batch_size, progress, prefixes, num_streams, glossary, advice=""
    ) -> list[list[Hypothesis]]:
        """Returns the hypotheses of each part of the texts, in order."""
        glossary = glossary or self.glossary
        check_argument(isinstance(search, Search), "search", "a search, or None", search)
        is_known = glossary is None or isinstance(glossary, Glossary)
        check_argument(is_known, "glossary", "a `Glossary`, or None", glossary)
        subwords = [part.ids for text_parts in parts for part in text_parts]
        subwords = cut_sources(subwords, self.max_source_length - 1, advice)
        num_subwords = np.array([len(ids) for ids in subwords], "int32")
        limits = ops.convert_to_numpy(self.max_lengths(num_subwords)).tolist()
        if prefixes is not None:
            prefixes = self._encode_prefixes(prefixes, parts, limits)
        terms = None
        if glossary is not None:
            terms = self._encode_terms(glossary, parts, limits, prefixes)
        answers = self._search_sources(
            [ids or None for ids in subwords],
            limits,
            search,
            batch_size,
            num_streams,
            progress,
            owners=[index for index, text_parts in enumerate(parts) for _ in text_parts],
            prefixes=prefixes,
            terms=terms,
        )
        if glossary is not None:
            texts = [part.text for text_parts in parts for part in text_parts]
            answers = [
                hypotheses and [h._replace(text=glossary.tidy(h.text, text)) for h in hypotheses]
                for hypotheses, text in zip(answers, texts, strict=True)
            ]
        return [hypotheses or [Hypothesis("", 0.0, 0.0, 0)] for hypotheses in answers]

    def _read_text(self, part):
        """Returns the text of a part, or the beginning that the model reads of one that is cut."""
        longest = self.max_source_length - 1  # EOS is added.
        if len(part.ids) <= longest:
            return part.text
        return self.source_tokenizer.decode(part.ids[:longest]).removeprefix(part.tags)

    def _encode_terms(self, glossary, parts, limits, prefixes):
        """Returns the ids of the terms that the answer to each part contains after its prefix."""
        texts = [self._read_text(part) for text_parts in parts for part in text_parts]
        prefixes = prefixes or [self.target_tokenizer.beginning] * len(texts)
        terms_of_parts = []
        joins = joins_of_pieces(self.target_tokenizer)
        for text, prefix, limit in zip(texts, prefixes, limits, strict=True):
            terms = glossary.encode(text, self.target_tokenizer)
            terms = without_terms_of(prefix, terms, joins)
            num_tokens = len(prefix) + sum(map(len, terms))
            if terms and num_tokens >= limit:
                rule = f"The translation of {shortened(text, 60)!r} may have at most {limit}"
                raise UserError(
                    f"{rule} tokens, the end of the sentence included. Received: terms of its "
                    f"glossary, and a prefix, with {num_tokens} tokens"
                )
            terms_of_parts.append(terms)
        return terms_of_parts

    def _encode_prefixes(self, prefixes, parts, limits):
        """Returns the ids that the answer to each part begins with.

        A prefix belongs to the first part of its text that has subwords.
        """
        prefixes = _checked_texts("prefixes", prefixes)
        if len(prefixes) != len(parts):
            rule = "There must be as many prefixes as texts"
            raise ValueError(f"{rule}. Received: {len(prefixes)} prefixes and {len(parts)} texts")
        part_prefixes = []
        for prefix, text_parts in zip(prefixes, parts, strict=True):
            for part in text_parts:
                part_prefixes.append(prefix if part.ids else "")
                prefix = "" if part.ids else prefix
        encoded = self.target_tokenizer.encode_batch(part_prefixes)
        encoded = [ids or [*self.target_tokenizer.beginning] for ids in encoded]
        for prefix, ids, limit in zip(part_prefixes, encoded, limits, strict=True):
            if prefix and len(ids) >= limit:
                raise UserError(
                    f"The prefix {shortened(prefix, 60)!r} has {len(ids)} tokens; its "
                    f"translation may have at most {limit}, the end of the sentence included."
                )
        return encoded

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> list[Score]:
        """Returns the `Score` of given translations, by their probability.

        Args:
            sources: Sequence of `str`; cut at `max_source_length`, with a logged warning.
            targets: Sequence of `str`, one for each source. An empty target is EOS alone.
            batch_size, progress: As in `translate`.

        Raises:
            ValueError: If there are not as many targets as sources.
            UserError: If a target is longer than the model's learned positions.
        """
        sources = self.source_tokenizer.encode_batch(_checked_texts("sources", sources))
        sources = cut_sources(sources, self.max_source_length - 1, _CUT_ADVICE)
        targets = self.target_tokenizer.encode_batch(_checked_texts("targets", targets))
        num_given = len(self.target_tokenizer.beginning)
        self._check_targets("score", sources, targets)

        def log_probabilities(source, target, labels):
            logits = self.model({"source": source, "target": target}, training=False)
            values = -cross_entropy(labels, logits)
            values = ops.where(ops.not_equal(labels, PAD_ID), values, 0.0)
            # The language is given, as in a search; an empty target has none.
            is_given = ops.arange(ops.shape(labels)[1]) < num_given
            values = ops.where(is_given & ops.not_equal(labels, EOS_ID), 0.0, values)
            return ops.sum(values, axis=1), values

        scores = [Score(0.0, 0)] * len(sources)
        max_tokens = min(_MAX_LOGITS // self.model.config.output_vocab_size, MAX_BATCH_TOKENS)
        results = self._inference.run_pairs(
            ("score", num_given),
            log_probabilities,
            sources,
            targets,
            batch_size,
            max_tokens,
            progress,
        )
        for index, total, values in results:
            tokens = (*targets[index], EOS_ID)
            token_values = tuple(values[: len(tokens)].tolist())
            scores[index] = Score(float(total), len(tokens), tokens, token_values)
        return scores

    def align(
        self,
        sources: Sequence[str],
        translations: Sequence[str],
        layer: int = -2,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> list[Alignment]:
        """Returns the `Alignment` of translations with their sources, by the model's attention.

        Each target word is aligned with the source word that gets the most attention, the mean over
        the heads of a layer, where the target word's subwords are predicted. This needs no
        training, but is less exact than a trained aligner.

        Args:
            sources, batch_size, progress: As in `score`.
            translations: Sequence of `str`, one for each source, such as `translate` returns.
            layer: Index of the decoder block; negative numbers count from the end. The last but one
                is the usual choice; with a single block, -2 is also allowed.

        Raises:
            ValueError, UserError: As in `score`, or if there is no such layer.

        Reference: Garg et al. (2019), https://arxiv.org/abs/1909.02074.
        """
        num_layers = self.model.config.num_decoder_layers
        is_int = isinstance(layer, int) and not isinstance(layer, bool)
        rule = f"one of the decoder's {num_layers}, counted from 0, or from the end with a minus"
        layer = 0 if is_int and layer == -2 and num_layers == 1 else layer
        check_argument(is_int and -num_layers <= layer < num_layers, "layer", rule, layer)
        sources, source_words = _encode_words(self.source_tokenizer, "sources", sources)
        sources = cut_sources(sources, self.max_source_length - 1, _CUT_ADVICE)
        targets, target_words = _encode_words(self.target_tokenizer, "translations", translations)
        self._check_targets("align", sources, targets)
        layer %= num_layers

        def mean_attention(source, target, labels):
            scores = self.model.attention_scores(source, target)["cross"][layer]
            return ops.mean(ops.cast(scores, "float32"), axis=1)  # [batch, target, source]

        alignments = {}
        results = self._inference.run_pairs(
            layer, mean_attention, sources, targets, batch_size, _MAX_ALIGNED_TOKENS, progress
        )
        first_target = len(self.target_tokenizer.beginning)
        first_source = len(self.source_tokenizer.beginning)
        for index, attention in results:
            attention = attention[first_target : len(targets[index])]
            attention = attention[:, first_source : len(sources[index])]
            alignments[index] = Alignment.of(attention, source_words[index], target_words[index])
        return [alignments[index] for index in range(len(sources))]

    def _check_targets(self, method, sources, targets):
        """Raises an error if targets are missing, or longer than the model's positions."""
        if len(sources) != len(targets):
            rule = f"{method}() needs as many targets as sources"
            raise ValueError(f"{rule}. Received: {len(sources)} sources and {len(targets)} targets")
        longest = self.model.config.max_length
        for index, ids in enumerate(targets):
            if longest is not None and len(ids) + 1 > longest:
                raise UserError(
                    f"Target {index} (counted from 0) has {len(ids) + 1} tokens with EOS; the "
                    f"model has learned positions for at most {longest}."
                )


def _checked_texts(name, texts):
    """Returns texts as a list; raises a ValueError if one of them is not a string."""
    rule = f"{name} must be a list of strings"
    if isinstance(texts, str | bytes):
        raise ValueError(f"{rule}; put one text into a list. Received: {name}={texts!r}")
    texts = list(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{rule}. Received: {name}[{index}]={text!r}")
    return texts


def _encode_words(tokenizer, name, texts):
    """Returns the ids of each text, and the number of ids of each of its words.

    The ids that the tokenizer puts before each text belong to no word.
    """
    ids, lengths = [], []
    beginning = [*tokenizer.beginning]
    for text in _checked_texts(name, texts):
        code = next((code for code in tokenizer.languages if text.startswith(code)), "")
        # Each word is encoded after the language of its text, which only the first keeps.
        words = [code + word if number else word for number, word in enumerate(text.split())]
        pieces = [word[len(beginning) :] for word in tokenizer.encode_batch(words)]
        pieces[1:] = [word[1 if code else 0 :] for word in pieces[1:]]
        tokens = [token for word in pieces for token in word]
        ids.append(beginning + tokens if tokens else [])
        lengths.append(list(map(len, pieces)))
    return ids, lengths
