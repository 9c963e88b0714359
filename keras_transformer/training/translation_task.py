"""Translation as a task of `train`: judged by BLEU, used by a `Translator`."""

from keras_transformer.data.subword_tokenizer import SubwordTokenizer, join_subwords
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.inference.tasks import Task
from keras_transformer.inference.translator import Translator
from keras_transformer.training.score_on_dev import BleuOnDev, beam_search, fast_search
from keras_transformer.training.training_data import make_tokenizers


class TranslationTask(Task):
    """Sentences into sentences: judged by BLEU, used by a `Translator`."""

    name, command, result_name = "translation", "translate", "translator"
    score_name, score_label = "bleu", "BLEU"
    pipeline = Translator
    served_functions = "keras_transformer.export.signatures.TranslatorFunctions"

    def check(self, corpus, settings) -> None:
        """Raises an error if BLEU's tokenizer cannot be loaded; accepts any corpus of pairs."""
        if settings.bleu_every and settings.bleu_tokenize:
            from keras_transformer.evaluation.bleu import make_bleu

            make_bleu(settings.bleu_tokenize)

    def learn_tokenizers(self, corpus, settings, source, report) -> TokenizerPair:
        return make_tokenizers(corpus, settings, report)

    def make_score(self, corpus, tokenizers: TokenizerPair, settings, recipe):
        pairs = [(source, target) for source, target in corpus if source and target]
        if not settings.bleu_every or not pairs:
            return None
        is_subword = isinstance(tokenizers.of_target, SubwordTokenizer)
        return BleuOnDev(
            [source for source, _ in pairs],
            [join_subwords(target) if is_subword else target for _, target in pairs],
            *tokenizers,
            search=fast_search(recipe, settings.bleu_beam_size),
            every=settings.bleu_every,
            lowercase=settings.bleu_lowercase,
            tokenize=settings.bleu_tokenize or ("none" if is_subword else "13a"),
        )

    def make_result(self, model, tokenizers: TokenizerPair, settings, recipe, sentence_profile):
        return Translator(
            model,
            *tokenizers,
            search=beam_search(recipe, recipe.beam_size),
            recipe=recipe,
            sentence_profile=sentence_profile,
        )
