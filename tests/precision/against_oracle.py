"""The oracle on the weights of our layers: batches of outputs and gradients, and their errors."""

import numpy as np

from tests.layers.oracle_parameters import transformer_parameters
from tests.oracle import transformer as oracle
from tests.oracle.slopes import leaves, slopes, slopes_of_gradient

# Of outputs and slopes in the sweep over shapes.
SWEEP_BOUNDS = {"float64": (1e-10, 1e-10), "float32": (1e-5, 2e-5)}


def relative_error(actual, expected):
    """The largest difference, relative to the largest number expected."""
    if not np.isfinite(actual).all():
        return float("inf")
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


def slope_error(gradient, expected):
    """The largest error of the slopes along a tree of gradients, relative to the leaf's norm.

    A gradient that is zero but for rounding, as that of the biases of keys is, has no size of its
    own: a leaf counts as at least a hundredth of the largest.
    """
    sizes = np.maximum([np.linalg.norm(leaf) for _, leaf in leaves(gradient)], np.abs(expected))
    errors = np.abs(slopes_of_gradient(gradient) - expected) / np.maximum(sizes, sizes.max() / 100)
    return float(errors.max()) if np.isfinite(errors).all() else float("inf")


def gradient_tree(layer, gradients, parameters_of):
    """Gradients to `layer.weights` as a tree like the oracle's parameters.

    The layer holds them for a moment, so that the function that reads its weights reads them.
    """
    weights = layer.get_weights()
    layer.set_weights(gradients)
    tree = parameters_of(layer)
    layer.set_weights(weights)
    return tree


def transformer_logits(model, source, target, params=None):
    """The oracle's logits `[batch, target_length, vocabulary]`; `params` default to the model's."""
    params, config = params or transformer_parameters(model), model.config
    return np.stack(
        [
            oracle.transformer(params, config.num_heads, *pair, config.norm)
            for pair in zip(source, target, strict=True)
        ]
    )


def transformer_slopes(model, source, target, loss):
    """The slopes of the oracle's `loss(logits)` for the weights of `model`."""
    params = transformer_parameters(model)
    if model.config.target_vocab_size is None:
        params["source"] = params["target"]
    return slopes(lambda params: loss(transformer_logits(model, source, target, params)), params)
