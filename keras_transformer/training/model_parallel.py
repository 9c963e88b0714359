"""How a Transformer too large for one device is spread over several."""

import keras

# A head, or a unit of the feed-forward layer, lives on one device: its map to the inside is cut by
# columns, the one back by rows, and only the latter's outputs are summed over the devices.
_COLUMNS = ("query_kernel", "key_kernel", "value_kernel", "inner_kernel")
_ROWS = ("output_kernel", "outer_kernel", "embeddings")
_INNER_BIASES = ("query_bias", "key_bias", "value_bias", "inner_bias")


def model_parallel_layout(device_mesh, axis="model"):
    """Returns how the weights of our layers, and their moments in Adam, are cut over devices.

    For `keras.distribution.ModelParallel`, which Keras has on JAX. `axis` must divide the number of
    heads, the width of the feed-forward layers and the vocabulary.

    Args:
        device_mesh: `keras.distribution.DeviceMesh`.
        axis: name of the mesh's axis over which weights are cut; the others share out the batch.

    Returns:
        `keras.distribution.LayoutMap`.

    Example:

    >>> import keras
    >>> from keras_transformer.training import model_parallel_layout
    >>> mesh = keras.distribution.DeviceMesh((1, 1), ["batch", "model"], ["cpu:0"])
    >>> layout = model_parallel_layout(mesh)
    >>> layout["transformer/encoder/block_0/attention/query_kernel"].axes
    (None, 'model')

    Source: Shoeybi et al. (2019), "Megatron-LM", section 3.
    """
    layout = keras.distribution.LayoutMap(device_mesh)
    for names, axes in (
        (_COLUMNS, (None, axis)),
        (_ROWS, (axis, None)),
        (_INNER_BIASES, (axis,)),
    ):
        layout[f".*({'|'.join(names)}).*"] = axes
    return layout
