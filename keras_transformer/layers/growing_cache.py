"""Keys and values that grow by a few positions in every step of decoding.

To put one position behind a thousand others copies all of them. So the last positions are kept
apart, as "recent" keys and values, and join the others when they are many: attention reads both,
and a step copies the recent ones alone.
"""

from keras import ops

# Steps between two copies of everything: few enough that the recent positions stay a small copy.
_STEPS = 32


def keep_recent_apart(cache):
    """Return the empty cache of a decoder, with room for recent positions.

    Args:
        cache: From `Decoder.make_cache`, one that grows.
    """
    blocks = []
    for block in cache["blocks"]:
        own = block["self"]
        own = {**own, "recent_key": own["key"], "recent_value": own["value"]}
        blocks.append({**block, "self": own})
    return {**cache, "blocks": blocks}


def extend(cache, new_keys, new_values):
    """Put keys and values behind those of a cache.

    Args:
        cache: A dict of `"key"` and `"value"`, `[batch, heads, length, dim]`; with `"recent_key"`
            and `"recent_value"`, or without: then everything is copied.
        new_keys, new_values: `[batch, heads, new_length, dim]`.

    Returns:
        The new cache; the keys and the values to attend to, each a tensor or a tuple of several
        that count one behind the other; and the number of positions before the new ones.
    """
    if "recent_key" not in cache:
        start = ops.shape(cache["key"])[2]
        keys = ops.concatenate([cache["key"], new_keys], axis=2)
        values = ops.concatenate([cache["value"], new_values], axis=2)
        return {"key": keys, "value": values}, keys, values, start
    cache = _joined(cache, _STEPS * new_keys.shape[2])
    parts = cache["key"], cache["recent_key"]
    start = length_of(parts)
    keys = ops.concatenate([cache["recent_key"], new_keys], axis=2)
    values = ops.concatenate([cache["recent_value"], new_values], axis=2)
    cache = {**cache, "recent_key": keys, "recent_value": values}
    return cache, (cache["key"], keys), (cache["value"], values), start


def length_of(keys):
    """Return the number of positions of keys, a tensor or a tuple of several."""
    if isinstance(keys, tuple):
        return sum(ops.shape(part)[2] for part in keys)
    return ops.shape(keys)[2]


def _joined(cache, most):
    """The cache, its recent positions with the others if they are `most` or more."""

    def join():
        recent = cache["recent_key"], cache["recent_value"]
        return {
            "key": ops.concatenate([cache["key"], recent[0]], axis=2),
            "value": ops.concatenate([cache["value"], recent[1]], axis=2),
            "recent_key": recent[0][:, :, :0],
            "recent_value": recent[1][:, :, :0],
        }

    length = ops.shape(cache["recent_key"])[2]
    if isinstance(length, int):
        return join() if length >= most else cache
    return ops.cond(length >= most, join, lambda: dict(cache))
