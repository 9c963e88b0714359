"""Seeds of the parts of a layer, derived from the layer's seed: different, but reproducible."""

import zlib
from collections.abc import Callable

import keras


def derive_seed(seed: int | None, name: str) -> int | None:
    """Returns the seed of the part `name`, derived from the seed of the layer; None for None."""
    return None if seed is None else (seed + zlib.crc32(name.encode())) % 2**31


def derive_initializer(initializer: Callable, name: str) -> Callable:
    """Returns an initializer that draws different numbers for each part `name`.

    An initializer that is used twice, or copied with its seed, gives equal matrices.
    """
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer  # A function.
    config = initializer.get_config()
    seed = config.get("seed")
    if isinstance(seed, int):
        return type(initializer).from_config({**config, "seed": derive_seed(seed, name)})
    # A seed generator draws new numbers with each use, and a copy would begin again.
    return initializer if seed is not None else initializer.clone()
