"""Pipeline: the base class of `Translator` and `Parser`."""

import abc
import collections
import itertools
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from keras import ops

from keras_transformer.data.special_tokens import EOS_ID
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.decoding import search_to_dict
from keras_transformer.decoding.search import Search
from keras_transformer.errors import UserError, one_line
from keras_transformer.files import read_unchanged
from keras_transformer.inference.batch_inference import BatchInference, one_answer
from keras_transformer.inference.inputs import LARGEST_LENGTH
from keras_transformer.inference.memory import MAX_BATCH_TOKENS
from keras_transformer.inference.model_directory import (
    CONFIG_FILE,
    check_sizes,
    read_config,
    read_model,
    read_recipe,
    read_tokenizers,
    write_model_directory,
)
from keras_transformer.inference.precision import choose_precision
from keras_transformer.inference.results import Hypothesis, to_hypotheses
from keras_transformer.inference.tasks import get_task
from keras_transformer.layers.checks import check_positive_integer
from keras_transformer.layers.dtypes import Tensor
from keras_transformer.models import Ensemble, TrainingRecipe, Transformer

Progress = Callable[[int, int], object]


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
    # Maximum number of padded source and target positions in a batch, over all rows and beams.
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
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer or source_tokenizer
        self.search = search
        self.extra_length = extra_length
        self.recipe = recipe
        self._inference = BatchInference(model, make_constraint)
        check_positive_integer("extra_length", extra_length, LARGEST_LENGTH)
        longest = 1024 if max_source_length is None else max_source_length
        check_positive_integer("max_source_length", longest, LARGEST_LENGTH)
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
        """Loads one or more model directories, written by `save` or `keras-transformer train`.

        Args:
            directory: the model directory; or a list of directories, whose models become an
                `Ensemble`. Their vocabularies, and a parser's linearizations, must be the same;
                other settings, such as the search, come from the first.
            dtype: dtype policy to compute in, such as `"bfloat16"`; `"auto"` for float32 or
                bfloat16, whichever multiplies faster on this machine; None for the global policy.

        Returns:
            An object of this class.

        Raises:
            ValueError: if the list is empty.
            UserError: if a file is missing, damaged, or does not fit the others, the directories
                do not fit each other, or one is for another task.
        """
        if isinstance(directory, str | os.PathLike):
            directories = [directory]
        else:
            directories = list(directory)
        if not directories:
            raise ValueError("There is no model directory to load. Received: directory=[]")
        # Another process may save a model there meanwhile.
        return read_unchanged(directories, CONFIG_FILE, lambda: cls._load(directories, dtype))

    @classmethod
    def _load(cls, directories, dtype):
        configs = [read_config(directory) for directory in directories]
        pairs = list(zip(directories, configs, strict=True))
        settings = [cls._read_settings(*pair) for pair in pairs]
        for name, place in itertools.product(cls.common_settings, range(1, len(pairs))):
            values = [settings[index].get(name) for index in (0, place)]
            if values[0] != values[1]:
                raise UserError(
                    f"Models answer together if they have the same {name}. "
                    f"Received: {str(directories[0])!r} with {values[0]} and "
                    f"{str(directories[place])!r} with {values[1]}"
                )
        tokenizers = [read_tokenizers(*pair) for pair in pairs]
        _check_same_vocabularies(directories, tokenizers)
        for pair in pairs:
            check_sizes(*pair)
        dtype = choose_precision(dtype, configs[0]["model"])
        models = [read_model(*pair, dtype=dtype) for pair in pairs]
        try:
            return cls(
                models[0] if len(models) == 1 else Ensemble(models),
                tokenizers[0].source,
                tokenizers[0].target,
                search=configs[0]["search"],
                recipe=read_recipe(directories[0]) if len(models) == 1 else None,
                **settings[0],
            )
        except (ValueError, TypeError) as error:
            raise UserError(f"{directories[0]}/{CONFIG_FILE}: {one_line(error)}") from error

    def save(self, directory: str | os.PathLike) -> pathlib.Path:
        """Writes a model directory: config, weights, tokenizers, and the recipe if there is one.

        Args:
            directory: the folder; files in it that do not belong to a model stay.

        Returns:
            `pathlib.Path`: the directory.

        Raises:
            UserError: if a file there has the name of a tokenizer or recipe, but is not one.
        """
        self.write(directory, self.search)
        return pathlib.Path(directory)

    def write(self, directory: str | os.PathLike, search: Search, **settings: Any) -> None:
        """Writes the files of `save` for an export, whose search may differ from the pipeline's.

        Args:
            directory: the folder of the files.
            search: the search that the export runs.
            **settings: entries that are added to `config.json`.
        """
        settings |= {"task": self.task, "search": search_to_dict(search)}
        for name, kind in self.settings.items():
            value = getattr(self, name)
            if value is not None:
                settings[name] = value if kind is None else value.to_dict()
        write_model_directory(directory, self.model, self.tokenizers, settings, self.recipe)

    @property
    def tokenizers(self) -> TokenizerPair:
        """The tokenizers of source and target."""
        is_shared = self.target_tokenizer is self.source_tokenizer
        return TokenizerPair(self.source_tokenizer, None if is_shared else self.target_tokenizer)

    def max_lengths(self, num_tokens: Tensor) -> Tensor:
        """Returns the maximum number of tokens of each answer, with EOS.

        Args:
            num_tokens: int32 `[batch]`, the length of each source, without EOS: subwords for a
                translator, words for a parser.

        Returns:
            int32 `[batch]`: `num_tokens + extra_length`, at most the model's `max_length`; 1 for an
            empty source.
        """
        limits = num_tokens + self.extra_length
        if self.model.config.max_length is not None:
            limits = ops.minimum(limits, self.model.config.max_length)
        return ops.cast(ops.where(ops.equal(num_tokens, 0), 1, limits), "int32")

    @classmethod
    def _read_settings(cls, directory, config) -> dict[str, Any]:
        found, wanted = get_task(config["task"]), get_task(cls.task)
        if found is not wanted:
            raise UserError(
                f"{str(directory)!r} holds a {found.pipeline.__name__}, not a {cls.__name__}: use "
                f"{found.pipeline.__name__}.load, or `keras-transformer {found.command}`."
            )
        try:
            return {
                name: config[name] if kind is None else kind.from_dict(config[name])
                for name, kind in cls.settings.items()
                # null means the default, except in settings that decide what the answers mean.
                if name in config and (config[name] is not None or name in cls.common_settings)
            }
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise UserError(f"{directory}/{CONFIG_FILE}: {one_line(error)}") from error

    def encode_pair(self, text: str, answer: str | None = None) -> tuple[list[int], list[int]]:
        """Returns ids with EOS; the arguments are those of `evaluation.attention_weights`."""
        source = [*self.source_tokenizer.encode(text), EOS_ID]
        if source == [EOS_ID]:
            raise UserError(f"The text must have words. Received: {text!r}")
        _check_length("text", source, self.max_source_length)
        if answer is None:
            limits = ops.convert_to_numpy(self.max_lengths(np.array([len(source) - 1], "int32")))
            [found] = self._search([source[:-1]], limits, one_answer(self.search), 1, 1, None)
            return source, list(found[0].tokens if found else ()) or [EOS_ID]
        target = [*self.target_tokenizer.encode(answer), EOS_ID]
        _check_length("answer", target, self.model.config.max_length or len(target))
        return source, target

    def _search(
        self,
        sources: Sequence[list[int] | None],
        limits: Sequence[int],
        search,
        batch_size: int | None,
        num_streams: int,
        progress: Progress | None,
        owners: Sequence[int] | None = None,
        **rows,
    ) -> list[list[Hypothesis] | None]:
        """Returns the hypotheses of each source, best first; None for a source that is None.

        `limits` count EOS; the ids of the sources do not include it. `owners` has the index of the
        text that each source is a part of, in ascending order; None if each text is one source.
        """
        owners = range(len(sources)) if owners is None else owners
        todo = {index: [*ids, EOS_ID] for index, ids in enumerate(sources) if ids is not None}
        indices = list(todo)
        num_texts = owners[-1] + 1 if len(owners) else 0
        num_left = collections.Counter(owners[index] for index in todo)  # sources of each text
        num_done = num_texts - len(num_left)
        rows = {
            name: [values[index] for index in todo]
            for name, values in rows.items()
            if values is not None
        }
        answers: list[list[Hypothesis] | None] = [None] * len(sources)
        for places, result in self._inference.search_batches(
            list(todo.values()),
            [limits[index] for index in todo],
            search,
            batch_size,
            self.max_batch_tokens,
            num_streams,
            **rows,
        ):
            found = to_hypotheses(result, self.target_tokenizer)
            for place, hypotheses in zip(places, found, strict=True):
                index = indices[place]
                answers[index] = hypotheses
                num_left[owners[index]] -= 1
                num_done += not num_left[owners[index]]
            if progress is not None:
                progress(num_done, num_texts)
        return answers


def _check_length(name, ids, longest):
    if len(ids) > longest:
        rule = f"The {name} must have at most {longest - 1:,} subwords, as many as the model reads"
        raise UserError(f"{rule}. Received: {len(ids) - 1:,} subwords")


def _check_same_vocabularies(directories, tokenizers):
    """Raises an error that names the first difference between the vocabularies, if any."""
    for directory, other in zip(directories[1:], tokenizers[1:], strict=True):
        for side, name in (("source", "source"), ("target", "of_target")):
            both = getattr(tokenizers[0], name), getattr(other, name)
            expected, found = [one.pieces(range(one.vocab_size)) for one in both]
            if found == expected:
                continue
            differ = f"{len(expected):,} and {len(found):,} pieces"
            if len(found) == len(expected):
                index = [a == b for a, b in zip(expected, found, strict=True)].index(False)
                differ = f"id {index} is {expected[index]!r} and {found[index]!r}"
            raise UserError(
                "Models answer together if they have the same vocabulary. "
                f"Received: {str(directories[0])!r} and {str(directory)!r}, whose {side} "
                f"vocabularies differ: {differ}"
            )
