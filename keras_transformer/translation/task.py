"""`TranslationTask`: sentences into sentences, judged by BLEU, used by a `Translator`."""

import argparse
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from keras_transformer.cli.arguments import CONSTRAINT_OPTIONS
from keras_transformer.errors import UserError
from keras_transformer.inference.tasks import Corpora, Task, toml_files
from keras_transformer.settings.setting import declare_options

_OPTIONS = {
    "source FILE": "training text in the source language, .gz too",
    "target FILE": "its translation, line by line",
    "valid_source FILE": "source text to choose and watch the model by; never the test set",
    "valid_target FILE": "its translation",
    "tsv FILE": "training pairs as source TAB target",
    "valid_tsv FILE": "validation pairs as source TAB target",
    "dataset NAME": "a translation set of tensorflow-datasets, such as wmt14_translate/de-en",
    "source_language CODE": "language to translate from, such as en",
    "target_language CODE": "language to translate into, such as de",
    "train_split SPLIT=train": "split of the dataset to train on",
    "valid_split SPLIT=validation": "split of the dataset to validate on",
    "prepared DIR": "encoded pairs of `keras-transformer prepare`, validation pairs included",
    "data_dir DIR": "folder of tensorflow-datasets for its files",
}


class TranslationTask(Task):
    """Sentences into sentences, as `Task` describes it."""

    name, command = "translation", "translate"
    score_name, score_label = "bleu", "BLEU"
    settings = (
        "shared_vocabulary",
        "bpe_dropout",
        "bleu_every",
        "bleu_beam_size",
        "bleu_lowercase",
        "bleu_tokenize",
    )

    learns_from = "sentence pairs"
    missing_data = (
        "Sentence pairs come from --source and --target, from --tsv, or from --dataset with "
        "--source-language and --target-language; in `train` also from --prepared."
    )
    commands = {
        "prepare": "keras_transformer.cli.prepare",
        "translate": "keras_transformer.cli.translate",
        "score": "keras_transformer.cli.score",
        "shortlist": "keras_transformer.cli.shortlist",
    }
    options = declare_options("data", _OPTIONS)
    data_kinds = {
        "source": ("source", "target", "valid_source", "valid_target"),
        "tsv": ("tsv", "valid_tsv"),
        "dataset": ("dataset", "source_language", "target_language"),
        "prepared": ("prepared",),
    }
    model_options = ("--source", "--long-lines", "--shortlist", *CONSTRAINT_OPTIONS)
    evaluate_inputs = ("source",)

    @property
    def pipeline(self) -> type:
        from keras_transformer.inference.translator import Translator

        return Translator

    @property
    def served_functions(self) -> type:
        from keras_transformer.export.signatures import TranslatorFunctions

        return TranslatorFunctions

    @property
    def experiments(self) -> dict[str, pathlib.Path]:
        return toml_files(pathlib.Path(__file__).with_name("experiments"))

    def check(self, corpus, settings) -> None:
        """Raises an error if BLEU's tokenizer cannot be loaded; accepts any corpus of pairs."""
        if settings.bleu_every and settings.bleu_tokenize:
            from keras_transformer.evaluation.bleu import make_bleu

            make_bleu(settings.bleu_tokenize)

    def learn_tokenizers(self, corpus, settings, source, report):
        from keras_transformer.training.training_data import make_tokenizers

        return make_tokenizers(corpus, settings, report)

    def make_score(self, corpus, tokenizers, settings, recipe):
        from keras_transformer.data.subword_tokenizer import SubwordTokenizer, join_subwords
        from keras_transformer.training.score_on_dev import BleuOnDev, fast_search

        pairs = [(source, target) for source, target in corpus if source and target]
        if not settings.bleu_every or not pairs:
            return None
        is_subword = isinstance(tokenizers.of_target, SubwordTokenizer)
        return BleuOnDev(
            [source for source, _ in pairs],
            [join_subwords(target) if is_subword else target for _, target in pairs],
            tokenizers.source,
            tokenizers.target,
            search=fast_search(recipe, settings.bleu_beam_size),
            every=settings.bleu_every,
            lowercase=settings.bleu_lowercase,
            tokenize=settings.bleu_tokenize or ("none" if is_subword else "13a"),
        )

    def make_result(self, model, tokenizers, settings, recipe, sentence_profile):
        from keras_transformer.training.score_on_dev import beam_search

        return self.pipeline(
            model,
            *tokenizers,
            search=beam_search(recipe, recipe.beam_size),
            recipe=recipe,
            sentence_profile=sentence_profile,
        )

    def open_corpora(self, kind: str, values: dict[str, Any]) -> Corpora:
        if kind == "prepared":
            return _open_prepared(values)
        if kind == "dataset":
            from keras_transformer.cli.backend import load_backend

            load_backend()  # tensorflow-datasets imports TensorFlow
            from keras_transformer.data import TfdsCorpus

            languages = (values["source_language"], values["target_language"])
            splits = (values["train_split"], values["valid_split"])
            name, folder = values["dataset"], values["data_dir"]
            corpora = (TfdsCorpus(name, one, *languages, data_dir=folder) for one in splits)
            return Corpora(*corpora)
        corpora = [_open_text(values, part) for part in ("", "valid_")]
        for corpus in corpora:
            len(corpus)  # reads all lines, and raises if one is not UTF-8 or has no partner
        return Corpora(*corpora)

    def open_known_corpus(self, values: Mapping[str, Any]) -> Any:
        if values["prepared"] and os.path.isdir(values["prepared"]):
            from keras_transformer.data import PreparedCorpus

            return PreparedCorpus.load(values["prepared"]).read("train")
        files = [values[name] for name in ("tsv", "source", "target") if values[name]]
        is_named = values["tsv"] or len(files) == 2
        return _open_text(values) if is_named and all(map(os.path.isfile, files)) else None

    def describe_data(self, values: Mapping[str, Any]) -> str:
        if values["dataset"]:
            return (
                f"{values['dataset']}, {values['source_language']} to "
                f"{values['target_language']}: {values['train_split']}, validated on "
                f"{values['valid_split']}"
            )
        names = ("prepared", "tsv", "source", "target")
        return " and ".join(values[name] for name in names if values[name])

    def add_evaluate_options(self, parser: argparse.ArgumentParser) -> None:
        from keras_transformer.translation.evaluate_command import define_options

        define_options(parser, self.options)

    def evaluate(self, arguments: argparse.Namespace) -> dict[str, Any]:
        from keras_transformer.translation.evaluate_command import evaluate

        return evaluate(self.name, arguments)


def _open_text(values: Mapping[str, Any], part: str = "") -> Any:
    from keras_transformer.data import ParallelTextCorpus, TsvCorpus

    if values[f"{part}tsv"]:
        return TsvCorpus(values[f"{part}tsv"])
    return ParallelTextCorpus(values[f"{part}source"], values[f"{part}target"])


def _open_prepared(values: dict[str, Any]) -> Corpora:
    """Opens a prepared corpus, and sets `shared_vocabulary` and `max_length` from it."""
    from keras_transformer.data import PreparedCorpus

    for name in ("vocabulary", "vocab_size", "bpe_dropout"):
        if values[name]:
            rule = "--prepared brings a vocabulary and its ids"
            raise UserError(f"{rule}. Received: --prepared and --{name.replace('_', '-')}")
    prepared = PreparedCorpus.load(values["prepared"])
    values["shared_vocabulary"] = prepared.target_tokenizer is None
    values["max_length"] = values["max_length"] or prepared.max_length
    if values["max_length"] > prepared.max_length:
        rule = f"{values['prepared']!r} has no sentence of more than {prepared.max_length} subwords"
        raise UserError(f"{rule}. Received: --max-length {values['max_length']}")
    return Corpora(
        prepared.read("train"),
        prepared.valid_text,
        prepared.source_tokenizer,
        prepared.target_tokenizer,
    )
