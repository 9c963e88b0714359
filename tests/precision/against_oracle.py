"""The oracle on the weights of our layers: batches of outputs and gradients, and their errors."""

import numpy as np

from tests.layers.oracle_parameters import transformer_parameters
from tests.oracle import backward
from tests.oracle import transformer as oracle
from tests.oracle.random_parameters import leaves

# Of outputs and gradients in the sweep over shapes, relative to the largest number.
SWEEP_BOUNDS = {"float64": (1e-10, 1e-8), "float32": (1e-5, 1e-4)}


def relative_error(actual, expected):
    """The largest difference, relative to the largest number expected."""
    if not np.isfinite(actual).all():
        return float("inf")
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


def tree_error(actual, expected):
    """The largest error of a leaf of a tree, relative to the largest number of that leaf.

    A gradient that is zero but for rounding, as that of the biases of keys is, has no size of its
    own: a leaf counts as at least a hundredth of the largest.
    """
    actual, expected = leaves(actual), leaves(expected)
    assert [path for path, _ in actual] == [path for path, _ in expected]
    sizes = [np.abs(leaf).max() for _, leaf in expected]
    errors = [
        np.abs(one - other).max() / max(size, max(sizes) / 100)
        for (_, one), (_, other), size in zip(actual, expected, sizes, strict=True)
    ]
    return float(max(errors)) if np.isfinite(errors).all() else float("inf")


def add_trees(one, other):
    if isinstance(one, dict):
        return {name: add_trees(one[name], other[name]) for name in one}
    if isinstance(one, list):
        return [add_trees(*pair) for pair in zip(one, other, strict=True)]
    return one + other


def gradient_tree(layer, gradients, parameters_of):
    """Gradients to `layer.weights` as a tree like the oracle's parameters.

    The layer holds them for a moment, so that the function that reads its weights reads them.
    """
    weights = layer.get_weights()
    layer.set_weights(gradients)
    tree = parameters_of(layer)
    layer.set_weights(weights)
    return tree


def transformer_logits(model, source, target):
    """The oracle's logits `[batch, target_length, vocabulary]` for the weights of `model`."""
    params, config = transformer_parameters(model), model.config
    return np.stack(
        [
            oracle.transformer(params, config.num_heads, *pair, config.norm)
            for pair in zip(source, target, strict=True)
        ]
    )


def transformer_gradients(model, source, target, upstream):
    """The oracle's gradients for the weights of `model`, given that of the logits."""
    params, config = transformer_parameters(model), model.config
    total = None
    for of_sentence in zip(source, target, upstream, strict=True):
        gradients = backward.transformer_backward(
            params, config.num_heads, *of_sentence, config.norm
        )
        total = gradients if total is None else add_trees(total, gradients)
    if config.target_vocab_size is None:  # One matrix: what it gets from both sides.
        total["source"] = total["target"] = total["source"] + total["target"]
    return total
