"""Parts of a layer with one seed get seeds of their own, the same ones every time."""

import keras
import numpy as np

from keras_transformer.layers.composite_layer import derive_initializer, derive_seed


def test_seeds_differ_by_name_and_by_seed_and_are_reproducible():
    seeds = {derive_seed(seed, name) for seed in range(5) for name in ("a", "b", "c")}
    assert len(seeds) == 15 and all(0 <= seed < 2**31 for seed in seeds)
    assert derive_seed(1, "query") == derive_seed(1, "query")
    assert derive_seed(None, "query") is None


def test_initializers_keep_their_settings():
    derived = derive_initializer(keras.initializers.TruncatedNormal(stddev=0.3, seed=1), "query")
    assert isinstance(derived, keras.initializers.TruncatedNormal) and derived.stddev == 0.3
    assert derived.seed == derive_seed(1, "query")
    zeros = derive_initializer(keras.initializers.Zeros(), "query")
    assert not np.asarray(zeros((2, 2))).any()
    assert derive_initializer(len, "query") is len
