"""CTranslate2 answers like the Translator from the exported folder alone, or the export refuses."""

import numpy as np
import pytest
import sentencepiece

from keras_transformer.errors import UserError
from keras_transformer.export import export_ctranslate2
from tests.closeness import assert_close
from tests.export.models import SLOW_CONFIGS, TEXTS, random_translator
from tests.tiny_translator import tiny_translator

ctranslate2 = pytest.importorskip("ctranslate2", reason="pip install ctranslate2")
SIZES = pytest.param({"key_dim": 6, "value_dim": 6}, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def directory(greedy_translator, tmp_path_factory):
    return export_ctranslate2(greedy_translator, tmp_path_factory.mktemp("export") / "m")


def load(directory, compute_type="float32"):
    return ctranslate2.Translator(str(directory), compute_type=compute_type, intra_threads=1)


def pieces_of(directory, texts, name="tokenizer"):
    """What a user does who has the exported folder and sentencepiece."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(directory / f"{name}.model"))
    return processor, processor.encode(texts, out_type=str)


def greedy(peer, sources, translator, **options):
    """The best pieces of each source, each with the translator's own limit of its length."""
    limits = translator.max_lengths(np.array([len(source) for source in sources]))
    options = {"beam_size": 1, "min_decoding_length": 0, **options}
    return [
        peer.translate_batch([source], max_decoding_length=int(limit), **options)[0].hypotheses[0]
        for source, limit in zip(sources, limits, strict=True)
    ]


def log_probabilities(peer, sources, targets):
    return [sum(score.log_probs) for score in peer.score_batch(sources, targets)]


class TestAnswers:
    def test_greedy_search_and_scores_are_the_translators(self, directory, greedy_translator):
        self.check(directory, greedy_translator)

    @pytest.mark.parametrize("config", [*SLOW_CONFIGS, SIZES], ids=str)
    def test_every_kind_of_model(self, config, tmp_path):
        translator = random_translator(**config)
        self.check(export_ctranslate2(translator, tmp_path / "m"), translator)

    def check(self, directory, translator):
        processor, sources = pieces_of(directory, TEXTS)
        peer = load(directory)
        answers = translator.translate(TEXTS)
        assert len(set(answers)) > 5
        found = greedy(peer, sources, translator)
        assert [processor.decode(pieces) for pieces in found] == answers

        sources_and_answers = sources, processor.encode(answers, out_type=str)
        expected = [score.log_probability for score in translator.score(TEXTS, answers)]
        assert_close(log_probabilities(peer, *sources_and_answers), expected, scale=1.0)


class TestContent:
    def test_weights_are_stored_once_also_quantized(self, directory, greedy_translator, tmp_path):
        small = export_ctranslate2(greedy_translator, tmp_path / "m", quantization="int8")
        sizes = [(path / "model.bin").stat().st_size for path in (directory, small)]
        positions = greedy_translator.max_source_length + greedy_translator.extra_length
        expected = 4 * (greedy_translator.model.count_params() + 32 * positions)
        assert expected <= sizes[0] < expected + 5000
        assert sizes[1] < 0.75 * sizes[0]
        _, sources = pieces_of(small, TEXTS)
        peers = load(directory), load(small, compute_type="default")
        exact, rounded = (log_probabilities(peer, sources, sources) for peer in peers)
        np.testing.assert_allclose(rounded, exact, rtol=0.05)

    def test_positions_end_where_the_translators_sources_and_answers_do(self, tmp_path):
        translator = tiny_translator(max_source_length=20, extra_length=4)
        peer = load(export_ctranslate2(translator, tmp_path / "m"))
        pieces = ["a"] * 23  # and EOS
        assert peer.score_batch([pieces], [pieces])[0].log_probs
        with pytest.raises(RuntimeError, match="positions >= 24"):
            peer.score_batch([[*pieces, "a"]], [pieces])


@pytest.mark.parametrize(
    "config, message",
    [
        ({"activation": "elu"}, "`activation` must be .* Received: activation='elu'"),
        ({"key_dim": 4}, "Received: key_dim=4, value_dim=8"),
        ({"position": "rotary"}, "Received: position='rotary', sliding_window=None"),
    ],
)
def test_models_that_ctranslate2_does_not_have(config, message, tmp_path):
    with pytest.raises(UserError, match=message):
        export_ctranslate2(random_translator(**config), tmp_path / "m")
    assert not list(tmp_path.iterdir())
