"""`TranslatorFunctions`: the signatures of a translator's SavedModel, from raw strings to tensors.

Every output has one row for each input string, so that a server can batch requests and split the
answers, which do not depend on other rows unless they are sampled or use a shortlist. A request is
processed in chunks of bounded size, which limits its memory.
"""

import tensorflow as tf
from keras import ops

from keras_transformer.data.languages import LANGUAGES
from keras_transformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.errors import UserError
from keras_transformer.inference.batch_inference import BEAMS_WITH_TERMS, search_with_terms
from keras_transformer.inference.sentences import SentenceProfile
from keras_transformer.inference.served_functions import ServedFunctions, encode, padded
from keras_transformer.layers.tensors import Tensor
from keras_transformer.translation.parts_in_graph import (
    join_answers,
    split_tags_in_graph,
    split_texts,
)
from keras_transformer.translation.terms_in_graph import GraphGlossary

# Maximum padded positions (of the longer side) in a chunk, and elements of its largest tensor.
_MAX_TOKENS, _MAX_NUMBERS = 32_768, 2**26
# White space as `str.strip` knows it.
_BLANK = r"[\pZ\t-\r\x1c-\x1f\x{85}]*"


class TranslatorFunctions(ServedFunctions):
    """The signatures of a translator; the arguments are those of `ServedFunctions`."""

    inputs: dict[str, tuple[str, ...]] = {
        **dict.fromkeys(("serving_default", "n_best", "limits"), ("text",)),
        **dict.fromkeys(("score", "attention"), ("text", "translation")),
    }
    outputs = ("translation", "translations")

    def __init__(
        self,
        pipeline,
        search,
        dtype=None,
        num_streams=1,
        long_texts="split",
        quantization=None,
        engine=None,
    ):
        tokenizers = pipeline.source_tokenizer, pipeline.target_tokenizer
        self.has_languages = all(tokenizer.language_ids for tokenizer in tokenizers)
        if self.has_languages:
            if pipeline.shortlist is not None:
                rule = "A shortlist is for one pair of languages, a SavedModel for all of the model"
                raise UserError(f"{rule}'s: export without the shortlist")
            named = {n: (*texts, *LANGUAGES) for n, texts in self.inputs.items() if n != "limits"}
            self.inputs = self.inputs | named
        super().__init__(pipeline, search, dtype, num_streams, long_texts, quantization, engine)
        if self.has_languages:
            self.module.languages = [_language_table(tokenizer) for tokenizer in tokenizers]
            codes = {number: code for code, number in reversed(tokenizers[0].language_ids.items())}
            self._settings["languages"] = sorted(codes.values())
            self._settings |= dict(zip(LANGUAGES, (t.language for t in tokenizers), strict=True))
        if pipeline.glossary is not None:
            target = pipeline.target_tokenizer, self.module.target_tokenizer
            self.module.glossary = GraphGlossary(pipeline.glossary, *target)
        longest = pipeline.max_source_length + pipeline.extra_length
        # Maximum number of tokens, EOS included, of a given or generated translation.
        self._max_target_length = min(longest, pipeline.model.config.max_length or longest)
        profile = pipeline.sentence_profile
        self._settings |= {
            "max_target_length": self._max_target_length,
            "sentence_profile": None if profile is None else profile.to_dict(),
            "long_texts": long_texts,
        }

    def serving_default(
        self, text: Tensor, source_language: Tensor = None, target_language: Tensor = None
    ) -> dict[str, Tensor]:
        if not self._splits:
            return super().serving_default(text, source_language, target_language)
        tokenizer, profile = self._pipeline.source_tokenizer, self._pipeline.sentence_profile
        parts = split_texts(
            self.module.source_tokenizer,
            text,
            max(self._pipeline.max_source_length - 1, 1),  # EOS is added.
            profile,
            SentenceProfile.tags_of(profile, tokenizer),
            len(tokenizer.beginning),
        )
        languages = [source_language, target_language]
        if self.has_languages:
            languages = [tf.gather(codes, parts.owners) for codes in languages]
        answers = super().serving_default(parts.texts, *languages)
        owners = parts.owners, parts.num_texts
        truncated, scores = tf.cast(answers["truncated"], tf.int32), answers["score"]
        # A part without subwords, such as blank lines, has a score of 0 and does not count.
        is_counted = tf.cast(tf.not_equal(scores, 0.0), scores.dtype)
        sums, numbers = (tf.math.unsorted_segment_sum(x, *owners) for x in (scores, is_counted))
        return {
            "translation": join_answers(answers["translation"], parts),
            "score": sums / tf.maximum(numbers, 1.0),
            "truncated": tf.math.unsorted_segment_max(truncated, *owners) > 0,
        }

    def score(
        self,
        text: Tensor,
        translation: Tensor,
        source_language: Tensor = None,
        target_language: Tensor = None,
    ) -> dict[str, Tensor]:
        language_ids = self._language_ids((source_language, target_language))
        sources, targets, truncated = self._encode_pairs(text, translation, language_ids)
        length = tf.cast(targets.bounding_shape()[1], tf.int32)

        def score_rows(start, end):
            labels = padded(targets[start:end], length)
            source, target = padded(sources[start:end]), _decoder_inputs(labels)
            logits = self._model({"source": source, "target": target}, training=False)
            chosen = tf.gather(logits, labels, batch_dims=2)
            log_probabilities = tf.cast(chosen - ops.logsumexp(logits, axis=-1), tf.float32)
            return tf.where(labels == PAD_ID, 0.0, log_probabilities)

        longest = _longest_row(sources, targets)
        chunk_size = _chunk_size(longest, length * self._model.config.output_vocab_size)
        empty = tf.zeros([0, length])
        values = in_chunks(score_rows, tf.shape(text)[0], chunk_size, empty)
        is_given = tf.range(length) < len(self._pipeline.target_tokenizer.beginning)
        values = tf.where(is_given & (padded(targets) != EOS_ID), 0.0, values)
        lacks_language = self._lacks_language(text, sources, language_ids)
        is_impossible = lacks_language[:, None] & (padded(targets) != PAD_ID)
        values = tf.where(is_impossible, float("-inf"), values)
        return {
            "log_probability": tf.reduce_sum(values, axis=1),
            "num_tokens": tf.cast(targets.row_lengths(), tf.int32),
            "tokens": self._pieces(self._pipeline.target_tokenizer, targets),
            "token_log_probabilities": values,
            "truncated": truncated,
        }

    def attention(
        self,
        text: Tensor,
        translation: Tensor,
        source_language: Tensor = None,
        target_language: Tensor = None,
    ) -> dict[str, Tensor]:
        language_ids = self._language_ids((source_language, target_language))
        sources, targets, truncated = self._encode_pairs(text, translation, language_ids)
        lengths = [tf.cast(ids.bounding_shape()[1], tf.int32) for ids in (targets, sources)]

        def attend_rows(start, end):
            labels = padded(targets[start:end], lengths[0])
            source = padded(sources[start:end], lengths[1])
            blocks = self._model.attention_scores(source, _decoder_inputs(labels))["cross"]
            # The last but one block aligns best (Garg et al., 2019, section 4.1).
            scores = tf.cast(blocks[max(len(blocks) - 2, 0)], tf.float32)
            scores = tf.reduce_mean(scores, axis=1)  # [batch, target, source]
            is_real = (labels != PAD_ID)[:, :, None] & (source != PAD_ID)[:, None, :]
            return tf.where(is_real, scores, 0.0)

        longest = _longest_row(sources, targets)
        chunk_size = _chunk_size(longest, longest**2 * self._model.config.num_heads)
        empty = tf.zeros([0, *lengths])
        return {
            "attention": in_chunks(attend_rows, tf.shape(text)[0], chunk_size, empty),
            "source_tokens": self._pieces(self._pipeline.source_tokenizer, sources),
            "target_tokens": self._pieces(self._pipeline.target_tokenizer, targets),
            "truncated": truncated,
        }

    def limits(self, text: Tensor) -> dict[str, Tensor]:
        limits = self._limits(text)
        num_subwords = tf.minimum(limits["num_tokens"], self._pipeline.max_source_length) - 1
        return {**limits, "max_translation_tokens": self._pipeline.max_lengths(num_subwords)}

    def _answer(self, text, search, languages):
        language_ids, pipeline = self._language_ids(languages), self._pipeline
        tags = SentenceProfile.declared_tags_of(
            pipeline.sentence_profile, pipeline.source_tokenizer
        )
        if tags:  # Tags alone are no text.
            text = tf.where(split_tags_in_graph(text, tags)[1] == "", "", text)
        sources, truncated = self._encode("source", text, language_ids)
        num_subwords = tf.cast(sources.row_lengths(), tf.int32) - 1
        beginnings = language_ids and tf.maximum(language_ids["target"], PAD_ID)[:, None]
        options = sources, num_subwords, beginnings
        if self._pipeline.glossary is None:
            answers, scores = self._search_rows(search, *options)
        else:
            read = self.module.source_tokenizer.detokenize(padded(sources))
            whole = tf.where(truncated, read, text)  # Terms of what is cut off do not count.
            answers, scores = self._search_with_terms(whole, search, *options)
        lacks_language = self._lacks_language(text, sources, language_ids)
        scores = tf.where(lacks_language[:, None], float("-inf"), scores)
        return (answers, scores), truncated

    def _search_rows(self, search, sources, num_subwords, beginnings, terms=None):
        def write(tokens, scores):
            tokens = tf.where((num_subwords == 0)[:, None, None], PAD_ID, tokens)
            flat = tf.reshape(tokens, [-1, tf.shape(tokens)[-1]])  # [batch * n, length]
            return tf.reshape(self.module.target_tokenizer.detokenize(flat), tf.shape(scores))

        options = {"write": write, "beginnings": beginnings, "terms": terms}
        return self._search(sources, num_subwords, search, **options)

    def _search_with_terms(self, text, search, sources, num_subwords, beginnings):
        """Returns the answers and scores of rows, which are searched with and without terms."""
        pipeline, glossary = self._pipeline, self.module.glossary
        tags = SentenceProfile.tags_of(pipeline.sentence_profile, pipeline.source_tokenizer)
        _, text = split_tags_in_graph(text, tags)
        terms = glossary.encode(text, pipeline.max_lengths(num_subwords))
        num_ids = tf.math.count_nonzero(terms != PAD_ID, axis=(1, 2), dtype=tf.int32)
        num_ids = tf.where(num_subwords > 0, num_ids, 0)
        few, many = BEAMS_WITH_TERMS
        groups = [num_ids == 0, (0 < num_ids) & (num_ids < few), few <= num_ids]
        groups, results = [tf.where(group)[:, 0] for group in groups], []
        for rows, num_beams in zip(groups, (0, few, many), strict=True):
            used = search_with_terms(search, num_beams) if num_beams else search
            taken = (
                x if x is None else tf.gather(x, rows)
                for x in (sources, num_subwords, beginnings, terms if num_beams else None)
            )
            results.append(self._search_rows(used, *taken))
        order = tf.argsort(tf.concat(groups, axis=0))
        answers, scores = (
            tf.gather(tf.concat(x, axis=0), order) for x in zip(*results, strict=True)
        )
        return glossary.tidy(answers, text), scores

    def _language_ids(self, languages):
        """Returns int32 `[batch]` by side from the codes of languages, -1 for an unknown one."""
        if not self.has_languages:
            return None
        tables = zip(self.module.languages, languages, strict=True)
        source, target = (table.lookup(codes) for table, codes in tables)
        is_known = (source >= 0) & (target >= 0)
        ids = {"source": source, "target": target}
        return {side: tf.where(is_known, numbers, -1) for side, numbers in ids.items()}

    def _encode(self, side, text, language_ids):
        """Returns `encode` of texts in these languages; a text in an unknown one has no ids."""
        tokenizer = getattr(self._pipeline, f"{side}_tokenizer")
        longest = {"source": self._pipeline.max_source_length, "target": self._max_target_length}
        if language_ids is not None:
            text = tf.where(language_ids[side] >= 0, text, "")
        ids, is_cut = encode(getattr(self.module, f"{side}_tokenizer"), text, longest[side])
        if language_ids is not None:
            wanted = tf.gather(language_ids[side], ids.value_rowids())
            is_language = ids.flat_values == tokenizer.language_ids[tokenizer.language]
            ids = ids.with_flat_values(tf.where(is_language, wanted, ids.flat_values))
        return ids, is_cut

    def _lacks_language(self, text, sources, language_ids):
        """Returns bool `[batch]`: whether each text lacks a language that its model knows."""
        if language_ids is not None:
            return language_ids["source"] < 0
        if not self._pipeline.source_tokenizer.languages:
            return tf.zeros(tf.shape(text), tf.bool)
        return (sources.row_lengths() == 1) & ~tf.strings.regex_full_match(text, _BLANK)

    def _encode_pairs(self, text, translation, language_ids):
        sources, is_cut = self._encode("source", text, language_ids)
        targets, is_target_cut = self._encode("target", translation, language_ids)
        return sources, targets, is_cut | is_target_cut

    def _pieces(self, tokenizer, ids):
        """Returns the piece of each id: strings `[batch, length]`, padded with `""`."""
        vocabulary = tf.constant(tokenizer.pieces(range(tokenizer.vocab_size)))
        pieces = ids.with_flat_values(tf.gather(vocabulary, ids.flat_values))
        return pieces.to_tensor(default_value="")


def _language_table(tokenizer):
    """Returns the table from codes to the ids of languages, with `""` for the tokenizer's own."""
    ids = tokenizer.language_ids | {"": tokenizer.language_ids[tokenizer.language]}
    numbers = tf.constant([*ids.values()], tf.int32)
    pairs = tf.lookup.KeyValueTensorInitializer(tf.constant([*ids]), numbers)
    return tf.lookup.StaticHashTable(pairs, default_value=-1)


def _decoder_inputs(labels):
    """Returns the labels shifted right, with BOS first; the padding stays where it is."""
    shifted = tf.pad(labels[:, :-1], [[0, 0], [1, 0]], constant_values=BOS_ID)
    return tf.where(labels == PAD_ID, PAD_ID, shifted)


def _longest_row(*rows):
    """Returns the maximum length of a row in the ragged tensors, at least 1."""
    return tf.reduce_max([tf.cast(ids.bounding_shape()[1], tf.int32) for ids in rows] + [1])


def _chunk_size(longest, num_numbers):
    """Returns how many rows fit both bounds, from the sizes of one row."""
    limits = (longest, _MAX_TOKENS), (num_numbers, _MAX_NUMBERS)
    return tf.reduce_min([tf.maximum(bound // tf.maximum(size, 1), 1) for size, bound in limits])


def in_chunks(function, num_rows, chunk_size, empty):
    """Joins the results of `function(start, end)` for chunks of rows; `empty` has no rows."""

    def extend(start, results):
        end = tf.minimum(start + chunk_size, num_rows)
        return end, tf.concat([results, function(start, end)], axis=0)

    _, results = tf.while_loop(
        lambda start, results: start < num_rows,
        extend,
        (tf.constant(0), empty),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, *empty.shape[1:]])),
        parallel_iterations=1,
    )
    return results
