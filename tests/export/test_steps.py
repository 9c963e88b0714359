"""What exports without our search refuse, and what they warn of."""

import logging

import pytest

from keras_transformer.decoding import (
    BeamSearch,
    GreedySearch,
    MinimumLength,
    NoRepeatNgrams,
    RepetitionPenalty,
    Sampling,
)
from keras_transformer.errors import UserError
from keras_transformer.export import export_ctranslate2, export_litert, export_onnx, formats
from keras_transformer.export.formats import warn_of_constraints
from keras_transformer.inference.translator import Translator
from keras_transformer.models import Ensemble
from tests.tiny_translator import tiny_model, tiny_tokenizer, tiny_translator

EXPORTS = {"ctranslate2": export_ctranslate2, "onnx": export_onnx, "litert": export_litert}


@pytest.fixture(
    params=["ctranslate2", *(pytest.param(x, marks=pytest.mark.slow) for x in ("onnx", "litert"))]
)
def export(request):
    """An export whose packages are installed."""
    for package in formats.FORMATS[request.param].packages:
        pytest.importorskip(package, reason=f"pip install {package}")
    return EXPORTS[request.param]


@pytest.mark.tensorflow_only("ONNX and LiteRT are written there")
@pytest.mark.parametrize("number", [1, 2])
def test_an_ensemble_is_refused_before_anything_is_written(export, tmp_path, number):
    ensemble = Ensemble([tiny_model(seed) for seed in range(number)])
    translator = Translator(ensemble, tiny_tokenizer())
    with pytest.raises(UserError, match=f"holds one model; .* Ensemble of {number}$"):
        export(translator, tmp_path / "exported")
    assert not list(tmp_path.iterdir())


@pytest.mark.tensorflow_only("ONNX and LiteRT are written there")
def test_constraints_of_the_search_are_named_once(export, tmp_path, caplog):
    constraints = [MinimumLength(3), NoRepeatNgrams(2)]
    with caplog.at_level(logging.WARNING, "keras_transformer"):
        export(tiny_translator(search=BeamSearch(constraints=constraints)), tmp_path / "exported")
    # The packages that write the formats have warnings of their own.
    ours = [record for record in caplog.records if record.name.startswith("keras_transformer")]
    (message,) = [record.getMessage() for record in ours]
    assert message.endswith("of the search: MinimumLength(length=3), NoRepeatNgrams(size=2).")
    assert list((tmp_path / "exported").iterdir())


class Own:
    """A constraint of a user: its name is said, not where it is in memory."""

    def start(self, max_lengths, width):
        return ()

    def __call__(self, state, log_probabilities, generated):
        return state, log_probabilities


def test_what_the_warning_says(caplog):
    warn_of_constraints(GreedySearch(), "ONNX export")
    assert not caplog.messages
    warn_of_constraints(Sampling(constraints=[RepetitionPenalty(1.5), Own()]), "ONNX export")
    assert caplog.messages == [
        "The ONNX export does not apply the constraints of the search: "
        "RepetitionPenalty(penalty=1.5), Own."
    ]
