"""The slopes of the oracle's functions, by a complex step, which loses no digit.

Where f is analytic and f(x) real, Im f(x + ih) / h is f'(x) but for terms of h**2, and nothing
cancels (Squire and Trapp, 1998). A tree is an array, or a dict or a list of trees.
"""

import numpy as np

STEP = 1e-30


def leaves(tree, path=""):
    """All (path, array) of a tree, in the order of the sorted keys."""
    if isinstance(tree, np.ndarray):
        return [(path, tree)]
    items = sorted(tree.items()) if isinstance(tree, dict) else enumerate(tree)
    return [leaf for key, value in items for leaf in leaves(value, f"{path}/{key}")]


def directions(tree):
    """A random direction for each leaf; trees of the same form have the same ones."""
    rng = np.random.default_rng(7)
    return [rng.normal(size=leaf.shape) for _, leaf in leaves(tree)]


def slopes_of_gradient(gradient):
    """The slope along the direction of each leaf, given a tree of gradients."""
    pairs = zip(leaves(gradient), directions(gradient), strict=True)
    return np.array([(leaf * direction).sum() for (_, leaf), direction in pairs])


def slopes(function, tree):
    """The slope of `function(tree)` along the direction of each leaf.

    A wrong number anywhere in the gradient of a leaf changes its slope. An array that is two leaves
    of the tree moves as a whole.
    """
    tree = as_complex(tree, {})
    results = []
    for (_, leaf), direction in zip(leaves(tree), directions(tree), strict=True):
        leaf += 1j * STEP * direction
        results.append(function(tree).imag / STEP)
        leaf.imag = 0.0
    return np.array(results)


def as_complex(tree, copies):
    if isinstance(tree, np.ndarray):
        return copies.setdefault(id(tree), tree.astype(complex))
    if isinstance(tree, dict):
        return {name: as_complex(value, copies) for name, value in tree.items()}
    return [as_complex(value, copies) for value in tree]
