"""`TranslationTask`: sentences into sentences, judged by BLEU, used by a `Translator`."""

from typing import Annotated, Literal, get_args

from keras_transformer.errors import UserError
from keras_transformer.inference.tasks import Task
from keras_transformer.settings.base import (
    MAY_CHANGE,
    Count,
    CountOrZero,
    Settings,
    settings_dataclass,
)

BleuTokenizer = Literal["13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "none"]
BLEU_TOKENIZERS = get_args(BleuTokenizer)


@settings_dataclass
class TranslationSettings(Settings):
    """The `task_settings` of `TrainingSettings` for translation.

    Args:
        bleu_every: Translate the validation text at every Nth validation; 0 never does.
        bleu_beam_size: Number of beams of these translations; 1 is greedy and fast.
        bleu_lowercase: Ignore case in this BLEU.
        bleu_tokenize: SacreBLEU's tokenizer, such as `zh` or `ja-mecab`; None for that of
            the target language, mostly 13a, and none for `subword` text.
    """

    bleu_every: Annotated[CountOrZero, MAY_CHANGE] = 1
    bleu_beam_size: Annotated[Count, MAY_CHANGE] = 1
    bleu_lowercase: Annotated[bool, MAY_CHANGE] = False
    bleu_tokenize: Annotated[BleuTokenizer | None, MAY_CHANGE] = None


class TranslationTask(Task):
    """Sentences into sentences, as `Task` describes it."""

    name, command = "translation", "translate"
    commands = "keras_transformer.cli.translation:TranslationCommands"
    settings = TranslationSettings
    score_name, score_label = "bleu", "BLEU"

    @property
    def pipeline(self) -> type:
        from keras_transformer.inference.translator import Translator

        return Translator

    @property
    def served_functions(self) -> type:
        from keras_transformer.translation.signatures import TranslatorFunctions

        return TranslatorFunctions

    def check(self, corpus, settings) -> None:
        """Raises an error if BLEU's tokenizer cannot be loaded; accepts any corpus of pairs."""
        task_settings = TranslationSettings.from_dict(settings.task_settings)
        if task_settings.bleu_every and task_settings.bleu_tokenize:
            from keras_transformer.evaluation.bleu import make_bleu

            make_bleu(task_settings.bleu_tokenize)

    def learn_tokenizers(self, corpus, settings, source, report):
        from keras_transformer.data.vocabularies import learn_vocabularies

        return learn_vocabularies(corpus, settings, report)

    def make_score(self, corpus, tokenizers, settings, recipe):
        from keras_transformer.data.encoded_corpus import EncodedCorpus
        from keras_transformer.data.lookup_tokenizers import SubwordTokenizer, join_subwords
        from keras_transformer.evaluation.bleu import bleu_tokenizer, make_bleu, warn_without_spaces
        from keras_transformer.training.scores import BleuOnDev, fast_search

        task_settings = TranslationSettings.from_dict(settings.task_settings)
        if not task_settings.bleu_every:
            return None
        if isinstance(corpus, EncodedCorpus):
            rule = "BLEU needs the text of validation pairs, such as `PreparedCorpus.valid_text`"
            raise UserError(f"{rule}, or `bleu_every=0`. Received: an EncodedCorpus")
        pairs = [(source, target) for source, target in corpus if source and target]
        if not pairs:
            return None
        is_subword = isinstance(tokenizers.of_target, SubwordTokenizer)
        of_language = "none" if is_subword else bleu_tokenizer(tokenizers.of_target.language)
        tokenize = task_settings.bleu_tokenize or of_language
        make_bleu(tokenize)  # Raises if a package is missing.
        references = [join_subwords(target) if is_subword else target for _, target in pairs]
        warn_without_spaces(references, tokenize, "give --target-language CODE or --bleu-tokenize")
        return BleuOnDev(
            [source for source, _ in pairs],
            references,
            tokenizers.source,
            tokenizers.target,
            search=fast_search(recipe, task_settings.bleu_beam_size),
            every=task_settings.bleu_every,
            lowercase=task_settings.bleu_lowercase,
            tokenize=tokenize,
        )

    def make_result(self, model, tokenizers, settings, recipe, sentence_profile, start_config=None):
        from keras_transformer.inference.model_directory import limits_of
        from keras_transformer.training.scores import beam_search

        options, constraints = {"recipe": recipe}, ()
        if start_config is not None:
            options |= limits_of(start_config)
            options["origin"] = start_config.get("origin")
            constraints = getattr(start_config["search"], "constraints", ())
        options["search"] = beam_search(recipe, recipe.beam_size, constraints)
        return self.pipeline(model, *tokenizers, sentence_profile=sentence_profile, **options)
