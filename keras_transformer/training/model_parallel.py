"""The layout of a Transformer that is too large for one device."""

import keras

# A head, or a unit of the feed-forward layer, is on one device: its first matrix is cut by columns,
# its second by rows, and only the outputs of the second are summed over the devices.
_COLUMNS = ("query_kernel", "key_kernel", "value_kernel", "inner_kernel")
_ROWS = ("output_kernel", "outer_kernel", "embeddings")
_INNER_BIASES = ("query_bias", "key_bias", "value_bias", "inner_bias")


def model_parallel_layout(
    device_mesh: keras.distribution.DeviceMesh, axis: str = "model"
) -> keras.distribution.LayoutMap:
    """Returns the layout of our layers' weights, and of their moments in Adam, over devices.

    For `keras.distribution.ModelParallel`, which Keras supports on JAX. The size of `axis` must
    divide the number of heads, the width of the feed-forward layers and the vocabulary.

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

    Reference: Shoeybi et al. (2019), "Megatron-LM", section 3.
    """
    layout = keras.distribution.LayoutMap(device_mesh)
    by_names = {_COLUMNS: (None, axis), _ROWS: (axis, None), _INNER_BIASES: (axis,)}
    for names, axes in by_names.items():
        layout[f".*({'|'.join(names)}).*"] = axes
    return layout
