"""BLEU on the validation set."""

from collections.abc import Sequence

from keras_transformer.training.score_on_dev import ScoreOnDev


class BleuOnDev(ScoreOnDev):
    """Translates the validation set at the end of epochs and logs its BLEU as `val_bleu`.

    Args:
        sources: list of `str`.
        references: list of `str`, raw text.
        source_tokenizer: tokenizer of the source.
        target_tokenizer: tokenizer of the target; None if they share one.
        search: search settings; None for greedy.
        every: int, epochs between translations.
        lowercase: compare in lower case.
        tokenize: name of a sacreBLEU tokenizer.

    Attributes:
        history: list of (epoch from 0, BLEU).
        hypotheses: the last translations.
        translator: `Translator` of the last evaluation, or None.

    Example:

    >>> from keras_transformer.data import SubwordTokenizer
    >>> from keras_transformer.training import BleuOnDev
    >>> callback = BleuOnDev(["a b"], ["b a"], SubwordTokenizer(["a", "b"]))
    >>> callback.history
    []
    """

    name, label, answer_name = "bleu", "BLEU", "translation"

    def __init__(
        self,
        sources: Sequence[str],
        references: Sequence[str],
        source_tokenizer,
        target_tokenizer=None,
        search=None,
        every: int = 1,
        lowercase: bool = False,
        tokenize: str = "13a",
    ):
        super().__init__(every)
        if len(sources) != len(references):
            raise ValueError(
                "`sources` and `references` must have the same number of lines. "
                f"Received: {len(sources)} and {len(references)}"
            )
        self.sources = list(sources)
        self.references = list(references)
        self.hypotheses: list[str] = []
        self._tokenizers = (source_tokenizer, target_tokenizer)
        self._search = search
        self._score_options = {"lowercase": lowercase, "tokenize": tokenize}

    def evaluate(self, model=None) -> float:
        """Translates the validation set now.

        Args:
            model: `Transformer`; None for the one that is trained.

        Returns:
            BLEU, 0 to 100.
        """
        from keras_transformer.decoding import GreedySearch
        from keras_transformer.evaluation import corpus_bleu
        from keras_transformer.inference.translator import Translator

        model = self._scored_model(model)
        # One translator for all calls: its search is compiled once.
        if self.translator is None or self.translator.model is not model:
            search = self._search or GreedySearch()
            self.translator = Translator(model, *self._tokenizers, search=search)
        self.hypotheses = self.translator.translate(self.sources)
        return corpus_bleu(self.hypotheses, self.references, **self._score_options).score

    def samples(self, number: int) -> list[tuple[str, str, str]]:
        """Returns the first sentences with their last translations and the references.

        Args:
            number: how many at most.
        """
        columns = (self.sources, self.hypotheses, self.references)
        return list(zip(*(column[:number] for column in columns), strict=True))
