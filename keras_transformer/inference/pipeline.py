"""`Pipeline`, the base class of `Translator` and `Parser`."""

import abc
import collections
import copy
import logging
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from keras import ops

from keras_transformer.checks import check_positive_integer
from keras_transformer.data.tokenizer import EOS_ID, Tokenizer
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.decoding import search_to_dict
from keras_transformer.decoding.search import Search
from keras_transformer.errors import UserError
from keras_transformer.files import read_unchanged
from keras_transformer.inference import model_directory
from keras_transformer.inference.batch_inference import MAX_BATCH_TOKENS, BatchInference, one_answer
from keras_transformer.inference.model_directory import reading_values
from keras_transformer.inference.results import Hypothesis
from keras_transformer.inference.tasks import get_task
from keras_transformer.layers.effective_weights import all_maps
from keras_transformer.layers.int8_products import quantize_maps
from keras_transformer.layers.tensors import Tensor
from keras_transformer.layouts import CONFIG_FILE
from keras_transformer.models import Ensemble, TrainingRecipe, Transformer

Progress = Callable[[int, int], object]

_LOGGER = logging.getLogger(__name__)
_LARGEST_LENGTH = 2**14  # A search that never finds an end takes a step for each token.


class Pipeline(abc.ABC):
    """A model with its tokenizers and a search, which turns texts into answers.

    The arguments are those of `Translator`; `make_constraint` is passed to `BatchInference`.
    """

    task: ClassVar[str]
    # Maps each setting saved in `config.json` to its class, or to None for a plain value. The class
    # must define `to_dict` and `from_dict`. Arguments and attributes have the same names.
    settings: ClassVar[dict[str, Any]] = {"extra_length": None, "max_source_length": None}
    # Settings that must be the same for all members of an ensemble.
    common_settings: ClassVar[tuple[str, ...]] = ()
    # Maximum number of padded source and target positions in a batch, over all hypotheses.
    max_batch_tokens: ClassVar[int] = MAX_BATCH_TOKENS

    def __init__(
        self,
        model: Transformer | Ensemble,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer | None,
        search: Search,
        extra_length: int,
        max_source_length: int | None,
        recipe: TrainingRecipe | dict | None,
        make_constraint: Callable | None = None,
    ):
        self.model, self.search, self.recipe = model, search, recipe
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer or source_tokenizer
        self.extra_length = extra_length
        self._inference = BatchInference(model, self.target_tokenizer, make_constraint)
        check_positive_integer("extra_length", extra_length, _LARGEST_LENGTH)
        longest = 1024 if max_source_length is None else max_source_length
        check_positive_integer("max_source_length", longest, _LARGEST_LENGTH)
        self.max_source_length = min(longest, model.config.max_length or longest)
        sizes = model.config.vocab_size, model.config.output_vocab_size
        tokenizers = self.source_tokenizer, self.target_tokenizer
        for side, tokenizer, size in zip(("source", "target"), tokenizers, sizes, strict=True):
            if tokenizer.vocab_size != size:
                raise ValueError(
                    f"The {side} tokenizer must have as many pieces as the model has {side} ids, "
                    f"{size}. Received: {side}_tokenizer.vocab_size={tokenizer.vocab_size}"
                )

    @classmethod
    def load(cls, directory: str | os.PathLike | Sequence, dtype: str | None = None) -> Self:
        """Returns the pipeline in one or more directories of `save` or `keras-transformer train`.

        Args:
            directory: The model directory; or a list of directories, whose models become an
                `Ensemble`. Their vocabularies, and a parser's linearizations, must be the same;
                other settings, such as the search, come from the first.
            dtype: Dtype policy to compute in, such as `"bfloat16"`; `"auto"` for float32 or
                bfloat16, whichever multiplies faster on this machine; None for the global policy.

        Raises:
            ValueError: If the list is empty.
            UserError: If a file is missing or damaged, or files or directories do not fit together.
        """
        if isinstance(directory, str | os.PathLike):
            directory = [directory]
        directories = list(directory)
        if not directories:
            raise ValueError("There is no model directory to load. Received: directory=[]")
        # Another process may save a model there meanwhile.
        return read_unchanged(directories, CONFIG_FILE, lambda: cls._load(directories, dtype))

    @classmethod
    def _load(cls, directories, dtype):
        pairs = [(directory, model_directory.read_config(directory)) for directory in directories]
        settings = [cls._read_settings(*pair) for pair in pairs]
        for name in cls.common_settings:
            for directory, other in zip(directories[1:], settings[1:], strict=True):
                if other.get(name) != (first := settings[0].get(name)):
                    raise UserError(
                        f"Models answer together if they have the same {name}. Received: "
                        f"{str(directories[0])!r} with {first} and {str(directory)!r} with "
                        f"{other.get(name)}"
                    )
        tokenizers = [model_directory.read_tokenizers(*pair) for pair in pairs]
        model_directory.check_same_vocabularies(directories, tokenizers)
        for pair in pairs:
            model_directory.check_sizes(*pair)
        directory, config = pairs[0]
        dtype = model_directory.choose_precision(dtype)
        models = [model_directory.read_model(*pair, dtype=dtype) for pair in pairs]
        with reading_values(f"{directory}/{CONFIG_FILE}"):
            return cls(
                models[0] if len(models) == 1 else Ensemble(models),
                *tokenizers[0],
                search=config["search"],
                recipe=model_directory.read_recipe(directory) if len(models) == 1 else None,
                **settings[0],
            )

    def quantize(self) -> None:
        """Quantizes the matrices of the model in int8, which must not change from now on.

        On TensorFlow and x86 processors, without a GPU, large models answer faster; some answers
        change by rounding. Matrices with LoRA stay as they are. The model cannot be saved as a
        model directory any more; a SavedModel holds it.

        Example:

        >>> from keras_transformer import Translator
        >>> translator = Translator.load("runs/en_de")  # doctest: +SKIP
        >>> translator.quantize()  # doctest: +SKIP
        """
        quantize_maps(all_maps(self.model))
        self._inference.use_constant_kernels()

    def save(self, directory: str | os.PathLike) -> pathlib.Path:
        """Writes a model directory, with the recipe if there is one, and returns its path.

        Args:
            directory: The folder; files in it that do not belong to a model stay.

        Raises:
            UserError: If a file there has the name of a tokenizer or recipe, but is not one.
        """
        self.write(directory, self.search)
        return pathlib.Path(directory)

    def write(self, directory: str | os.PathLike, search: Search, **settings: Any) -> None:
        """Writes a model directory with this search, for `save` and for exports.

        Args:
            directory: The folder.
            search: The search to save.
            **settings: Entries that are added to `config.json`.
        """
        settings |= {"task": self.task, "search": search_to_dict(search)}
        for name, kind in self.settings.items():
            value = getattr(self, name)
            if value is not None:
                settings[name] = value if kind is None else value.to_dict()
        model_directory.write_model_directory(
            directory, self.model, self.tokenizers, settings, self.recipe
        )

    @property
    def tokenizers(self) -> TokenizerPair:
        """The tokenizers of source and target."""
        is_shared = self.target_tokenizer is self.source_tokenizer
        return TokenizerPair(self.source_tokenizer, None if is_shared else self.target_tokenizer)

    def with_languages(
        self, source_language: str | None = None, target_language: str | None = None
    ) -> Self:
        """Returns a pipeline for other languages with the same model.

        Args:
            source_language: Code of the language of the texts, such as `"fr"`: one of the model's,
                or a code of ISO 639 that clearly means one. None for that of this pipeline.
            target_language: Code of the language of the answers.

        Raises:
            UserError: If the model has no such language, or if there is a shortlist and the pair of
                languages changes.

        Example:

        >>> from keras_transformer import Translator
        >>> translator = Translator.load("models/m2m100")  # doctest: +SKIP
        >>> translator.with_languages("fr", "zu").translate(["Un chien court."])  # doctest: +SKIP
        """
        codes = self.source_tokenizer.languages
        if codes and (source_language or target_language):
            rule = "Each text for this model begins with the code of its target language"
            given = f"{source_language=}, {target_language=}"
            raise UserError(f"{rule}, such as {codes[0]}; no option chooses it. Received: {given}")
        other = copy.copy(self)
        # The copy shares the model and the compiled functions.
        other._inference = copy.copy(self._inference)
        if source_language is not None:
            other.source_tokenizer = self.source_tokenizer.with_language(source_language)
        if target_language is not None:
            other.target_tokenizer = self.target_tokenizer.with_language(target_language)
        pairs = [(p.source_tokenizer.language, p.target_tokenizer.language) for p in (self, other)]
        if self._inference.shortlist is not None and pairs[0] != pairs[1]:
            raise UserError("A shortlist is for one pair of languages: choose others without it.")
        return other

    def max_lengths(self, num_tokens: Tensor) -> Tensor:
        """Returns the maximum number of tokens of each answer, with EOS, int32 `[batch]`.

        It is `num_tokens + extra_length`, at most the model's `max_length`; 1 for an empty source.

        Args:
            num_tokens: int32 `[batch]`, the length of each source, without EOS: subwords for a
                translator, words for a parser.
        """
        limits = num_tokens + self.extra_length
        if self.model.config.max_length is not None:
            limits = ops.minimum(limits, self.model.config.max_length)
        return ops.cast(ops.where(ops.equal(num_tokens, 0), 1, limits), "int32")

    @classmethod
    def _read_settings(cls, directory, config) -> dict[str, Any]:
        task = get_task(config["task"])
        if task is not get_task(cls.task):
            name = task.pipeline.__name__
            raise UserError(
                f"{str(directory)!r} holds a {name}, not a {cls.__name__}: use {name}.load, or "
                f"`keras-transformer {task.command}`."
            )
        with reading_values(f"{directory}/{CONFIG_FILE}"):
            return {
                name: config[name] if kind is None else kind.from_dict(config[name])
                for name, kind in cls.settings.items()
                # null means the default, except in settings that decide what the answers mean.
                if name in config and (config[name] is not None or name in cls.common_settings)
            }

    def encode_pair(self, text: str, answer: str | None = None) -> tuple[list[int], list[int]]:
        """Returns the ids of a text and of its answer, with EOS.

        Args:
            text: The text.
            answer: None for the answer that the search finds.
        """
        source = [*self.source_tokenizer.encode(text), EOS_ID]
        if source == [EOS_ID]:
            raise UserError(f"The text must have words. Received: {text!r}")
        _check_length("text", source, self.max_source_length)
        if answer is None:
            limits = ops.convert_to_numpy(self.max_lengths(np.array([len(source) - 1], "int32")))
            [answers] = self._search_sources(
                [source[:-1]], limits, one_answer(self.search), 1, 1, None
            )
            return source, list(answers[0].tokens if answers else ()) or [EOS_ID]
        target = [*self.target_tokenizer.encode(answer), EOS_ID]
        _check_length("answer", target, self.model.config.max_length or len(target))
        return source, target

    def _search_sources(
        self, sources, limits, search, batch_size, num_streams, progress, owners=None, **per_source
    ) -> list[list[Hypothesis] | None]:
        """Returns the hypotheses of each source, best first; None for a source that is None.

        `limits` count EOS; the ids of the sources do not include it. `owners` has the index of the
        text that each source is a part of, in ascending order; None if each text is one source.
        `per_source` are those of `BatchInference.search_batches`.
        """
        per_source["num_given"] = len(beginning := self.target_tokenizer.beginning)
        if beginning and not per_source.get("prefixes"):
            per_source["prefixes"] = [[*beginning]] * len(sources)
        owners = range(len(sources)) if owners is None else owners
        num_texts = owners[-1] + 1 if len(owners) else 0
        # The number of sources of each text that are not finished.
        num_left = collections.Counter(
            owner for owner, ids in zip(owners, sources, strict=True) if ids is not None
        )
        num_done = num_texts - len(num_left)
        answers: list[list[Hypothesis] | None] = [None] * len(sources)
        for indices, result in self._inference.search_batches(
            sources, limits, search, batch_size, self.max_batch_tokens, num_streams, **per_source
        ):
            batch_answers = _to_hypotheses(result, self.target_tokenizer)
            for index, hypotheses in zip(indices, batch_answers, strict=True):
                answers[index] = hypotheses
                num_left[owners[index]] -= 1
                if not num_left[owners[index]]:
                    num_done += 1
            if progress is not None:
                progress(num_done, num_texts)
        return answers


def cut_sources(subwords: list[list[int]], max_subwords: int, advice: str = "") -> list[list[int]]:
    """Cuts the ids of sources to `max_subwords`, with a logged warning that ends in `advice`."""
    num_cut = sum(len(ids) > max_subwords for ids in subwords)
    if num_cut:
        message = "%d of %d sources have more than %d subwords and were cut to that length%s."
        _LOGGER.warning(message, num_cut, len(subwords), max_subwords, advice)
    return [ids[:max_subwords] for ids in subwords]


def _to_hypotheses(result, tokenizer):
    """Returns the hypotheses of each sentence of a `SearchResult`, best first."""
    answers = []
    for tokens, *numbers in zip(*result, strict=True):
        texts = tokenizer.decode_batch(tokens)
        hypotheses = [
            Hypothesis(text, float(score), float(log_probability), int(length), tuple(ids[:length]))
            for text, ids, score, log_probability, length in zip(
                texts, tokens.tolist(), *numbers, strict=True
            )
        ]
        # A tiny vocabulary may have fewer sequences than the beam.
        real = [answer for answer in hypotheses if answer.log_probability > float("-inf")]
        answers.append(real or hypotheses[:1])
    return answers


def _check_length(name, ids, longest):
    if len(ids) > longest:
        rule = f"The {name} must have at most {longest - 1:,} subwords, as many as the model reads"
        raise UserError(f"{rule}. Received: {len(ids) - 1:,} subwords")
