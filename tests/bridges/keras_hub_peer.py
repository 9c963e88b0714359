"""KerasHub's blocks beside ours."""

import numpy as np

from keras_transformer.bridges import from_keras_hub
from tests.bridges.comparison import errors, keras_values
from tests.layers.oracle_parameters import array, randomize

KINDS = ("TransformerEncoder", "TransformerDecoder")


def make_layer(kind, case, **options):
    """A built layer with random weights."""
    import keras_hub

    layer = getattr(keras_hub.layers, kind)(
        case.intermediate_dim,
        case.num_heads,
        activation=case.activation,
        layer_norm_epsilon=case.epsilon,
        normalize_first=case.norm == "pre",
        dtype=case.dtype,
        **options,
    )
    shape = (None, None, case.d_model)
    layer.build(*[shape] * (1 if kind == "TransformerEncoder" else 2))
    randomize(layer, case.seed)
    return layer


def keras_hub_errors(kind, case):
    """Errors of our block with the weights of a KerasHub layer against it."""
    layer = make_layer(kind, case)
    block = from_keras_hub(layer)
    inputs, ours, theirs = calls(case, block, layer)
    cotangent = case.states(np.random.default_rng(1), case.length)
    outputs, gradients = keras_values(layer, theirs, inputs, cotangent)
    # The import is linear: it puts gradients into our layout, too.
    layer.set_weights(gradients[len(inputs) :])
    gradients[len(inputs) :] = [array(one) for one in from_keras_hub(layer).weights]
    return errors(keras_values(block, ours, inputs, cotangent), (outputs, gradients))


def calls(case, block, layer):
    """Inputs, and how to call our block and theirs on them with the same masks."""
    rng = case.generator()
    padding = case.padding_mask(rng, case.length)
    if type(layer).__name__ == "TransformerEncoder":
        mask = case.attention_mask(rng, case.length, case.length, "causal" in case.masks)
        ours = theirs = {"padding_mask": padding, "attention_mask": mask}
        lengths = (case.length,)
    else:
        mask = case.attention_mask(rng, case.length, case.length)
        source_masks = {
            "encoder_padding_mask": case.padding_mask(rng, case.source_length),
            "encoder_attention_mask": case.attention_mask(rng, case.length, case.source_length),
        }
        ours = {"padding_mask": padding, "attention_mask": mask, **source_masks}
        theirs = {"decoder_padding_mask": padding, "decoder_attention_mask": mask, **source_masks}
        lengths = (case.length, case.source_length)
    inputs = [case.states(rng, length) for length in lengths]
    return inputs, lambda *x: block(*x, **ours), lambda *x: layer(*x, **theirs)
