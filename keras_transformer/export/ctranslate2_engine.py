"""`CTranslate2Engine`: the searches of a translator in CTranslate2 instead of Keras."""

import math
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.data.tokenizer import EOS_ID, PAD_ID
from keras_transformer.decoding import BeamSearch, GreedySearch
from keras_transformer.decoding.beam_search import length_penalty
from keras_transformer.decoding.search import Search, SearchResult
from keras_transformer.errors import UserError
from keras_transformer.export.ctranslate2 import write_ctranslate2
from keras_transformer.export.formats import FORMATS
from keras_transformer.inference.batch_inference import NOT_IN_ENGINES
from keras_transformer.inference.translator import Translator
from keras_transformer.models import Ensemble
from keras_transformer.models.processor import num_cores


class CTranslate2Engine:
    """Searches for the answers of a translator in CTranslate2, with the weights that it has now.

    Small models answer faster than in Keras. The search is CTranslate2's own, whose hypotheses are
    ranked by our scores; docs/runtimes.md lists how it differs. A given prefix has no part in the
    scores.

    Args:
        translator: A `Translator`, on any backend.
        quantization: As in `export_ctranslate2`.
        num_streams: Number of batches that are searched at the same time, which share the cores.

    Raises:
        UserError: If ctranslate2 is not installed or does not support the model or quantization, or
            if `translator` is a parser, or has an `Ensemble`, a glossary or a shortlist.

    Example:

    >>> from keras_transformer import Translator  # doctest: +SKIP
    >>> translator = Translator.load("runs/en_de")  # doctest: +SKIP
    >>> translator.engine = CTranslate2Engine(translator, "int8")  # doctest: +SKIP
    >>> translator.translate(["A dog runs."])  # doctest: +SKIP
    """

    def __init__(
        self,
        translator: Translator,
        quantization: str | None = None,
        num_streams: int = 1,
    ):
        form = FORMATS["ctranslate2"]
        form.check_packages()
        form.check_options({"quantization": quantization})
        if not isinstance(translator, Translator) or isinstance(translator.model, Ensemble):
            kind = type(translator if translator.task != "translation" else translator.model)
            rule = "CTranslate2 searches for a translator of one model"
            raise UserError(f"{rule}. Received: {kind.__name__}")
        if translator.glossary is not None or translator.shortlist is not None:
            raise UserError(NOT_IN_ENGINES)
        import ctranslate2

        with tempfile.TemporaryDirectory() as folder:
            write_ctranslate2(translator, pathlib.Path(folder), quantization)
            self._engine = ctranslate2.Translator(
                folder,
                compute_type=quantization or "float32",
                inter_threads=num_streams,
                intra_threads=max(1, num_cores() // num_streams),
            )
        tokenizers = translator.source_tokenizer, translator.target_tokenizer
        self._source, self._target = (t.pieces(range(t.vocab_size)) for t in tokenizers)
        self._ids = {piece: token for token, piece in enumerate(self._target)}

    def check_search(self, search: Search) -> None:
        """Raises a `UserError` if CTranslate2 does not have a search.

        Args:
            search: Any search.
        """
        if not isinstance(search, GreedySearch | BeamSearch) or search.constraints:
            rule = "CTranslate2 searches greedily or with beams, without constraints"
            raise UserError(f"{rule}. Received: {search}")

    def search(
        self,
        sources: Sequence[Sequence[int]],
        limits: Sequence[int],
        search: Search,
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> SearchResult:
        """Returns the `SearchResult` of a batch, as NumPy arrays.

        Args:
            sources: Ids with EOS.
            limits: Maximum number of tokens of each answer, EOS included.
            search: A `GreedySearch` or `BeamSearch` without constraints.
            prefixes: Ids that each answer begins with.

        Raises:
            UserError: As in `check_search`.
        """
        self.check_search(search)
        options: dict[str, Any] = {}
        alpha, penalties = 0.0, np.ones(max(limits) + 1)
        if isinstance(search, BeamSearch):
            alpha, normalization = search.length_penalty, search.length_normalization
            penalties = length_penalty(np.arange(len(penalties)), alpha, normalization)
            penalties = ops.convert_to_numpy(penalties)
            if normalization == "gnmt":  # It grows like n ** alpha near n tokens.
                mean_length = np.mean([len(source) for source in sources])
                alpha *= mean_length / (mean_length + 5)
            # CTranslate2 rounds patience * beam_size, and returns no more hypotheses than that.
            finished = max(math.ceil((search.patience or 1) * search.beam_size), search.n_best)
            options = {"patience": finished / search.beam_size}
            options["num_hypotheses"] = min(finished, search.beam_size)
        options |= {"beam_size": search.width, "length_penalty": alpha, "min_decoding_length": 0}
        options |= {"max_input_length": 0, "return_scores": True}
        inputs = [[self._source[token] for token in source[:-1]] for source in sources]
        beginnings = [[self._target[token] for token in ids] for ids in prefixes or ()]

        def translate(rows, limit):
            given = [beginnings[row] for row in rows] if prefixes else None
            texts = [inputs[row] for row in rows]
            return self._engine.translate_batch(texts, given, max_decoding_length=limit, **options)

        results = translate(range(len(inputs)), max(limits))
        for row, limit in enumerate(limits):
            # CTranslate2 has one limit for a batch: the few answers that pass theirs are repeated.
            if limit < max(limits) and any(len(h) >= limit for h in results[row].hypotheses):
                [results[row]] = translate([row], limit)
        found = [
            self._ranked(result, limit, alpha, penalties)
            for result, limit in zip(results, limits, strict=True)
        ]
        shape = len(found), getattr(search, "n_best", 1)
        tokens = np.full((*shape, max(limits)), PAD_ID, "int32")
        scores, log_probabilities = (np.full(shape, -np.inf, "float32") for _ in range(2))
        lengths = np.zeros(shape, "int32")
        for row, hypotheses in enumerate(found):
            for rank, (score, log_probability, ids) in enumerate(hypotheses[: shape[1]]):
                tokens[row, rank, : len(ids)] = ids
                scores[row, rank], log_probabilities[row, rank] = score, log_probability
                lengths[row, rank] = len(ids)
        return SearchResult(tokens, scores, log_probabilities, lengths)

    def _ranked(self, result, limit, alpha, penalties):
        """Returns the score, log-probability and ids of each hypothesis, best first."""
        hypotheses = []
        for pieces, value in zip(result.hypotheses, result.scores, strict=True):
            ids = [*(self._ids[piece] for piece in pieces), EOS_ID][:limit]
            log_probability = value * len(ids) ** alpha
            hypotheses.append((log_probability / penalties[len(ids)], log_probability, ids))
        return sorted(hypotheses, key=lambda hypothesis: -hypothesis[0])
