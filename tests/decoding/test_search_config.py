"""Searches survive JSON, and bad settings are named."""

import dataclasses
import json

import numpy as np
import pytest

from keras_transformer.decoding import (
    BeamSearch,
    GreedySearch,
    MinimumLength,
    RepetitionPenalty,
    Sampling,
    search_from_dict,
    search_to_dict,
)


@pytest.mark.parametrize(
    "search",
    [
        GreedySearch(),
        BeamSearch(),
        BeamSearch(5, 1.0, 3, "length"),
        Sampling(),
        Sampling(0.7, 10, 0.9, 4, 123),
        Sampling(np.float32(0.5), top_p=np.float64(0.5)),
        BeamSearch(2, np.float32(0.5), constraints=[RepetitionPenalty(np.float32(1.5))]),
    ],
)
def test_round_trip(search):
    assert search_from_dict(json.loads(json.dumps(search_to_dict(search)))) == search


@pytest.mark.parametrize(
    "settings,message",
    [
        ({}, "name=None"),
        ({"name": "diverse"}, "name='diverse'"),
        ({"name": "beam", "beams": 4}, "beams"),
        ({"name": "beam", "beam_size": 0}, "beam_size=0"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        search_from_dict(settings)


def test_other_objects_are_no_searches():
    with pytest.raises(ValueError, match="Received: search=4"):
        search_to_dict(4)


@pytest.mark.parametrize("search", [BeamSearch, Sampling, MinimumLength])
def test_numbers_beyond_int32_are_refused(search):
    names = {field.name for field in dataclasses.fields(search)}
    (name,) = names & {"beam_size", "num_samples", "length"}
    with pytest.raises(ValueError, match=f"Received: {name}=2147483648"):
        search(**{name: 2**31})
