"""Batches of limited size, and estimates of the memory that a search needs."""

import pathlib
from collections.abc import Sequence

from keras_transformer.errors import UserError
from keras_transformer.layers.checks import check_positive_integer

# Maximum number of padded source and target positions in a batch, over all rows and beams.
MAX_BATCH_TOKENS = 32_768
# Maximum size of the logits of a scored batch, `[batch, length, vocabulary]`: 256 MB.
MAX_BATCH_LOGITS = 2**26
# Maximum number of positions in an aligned batch; attention grows with the square of the length.
MAX_ALIGNED_TOKENS = 8_192
# Default maximum of sentences in a batch to search, and of rows: sentences times beams.
_MAX_SENTENCES, _MAX_ROWS = 128, 256

# Usable share of the free memory: estimates may be too small, and other programs need memory.
_USABLE = 0.8
_GIGABYTE = 1e9


def default_batch_size(width: int) -> int:
    """Returns the number of sentences to search at once, `width` rows each; more are no faster."""
    return max(1, min(_MAX_SENTENCES, _MAX_ROWS // width))


def cut_batches(sizes: Sequence[int], max_rows: int, max_total: int) -> list[list[int]]:
    """Returns batches of row indices, largest rows first, of limited padded size.

    `max_total` limits the number of rows times their largest size; a larger row is a batch alone.

    Example:

    >>> cut_batches([1, 9, 2, 3], max_rows=2, max_total=10)
    [[1], [3, 2], [0]]
    """
    check_positive_integer("batch_size", max_rows)
    batches: list[list[int]] = []
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        largest = sizes[batches[-1][0]] if batches else 0
        is_full = not batches or len(batches[-1]) >= max_rows
        if is_full or (len(batches[-1]) + 1) * largest > max_total:
            batches.append([])
        batches[-1].append(index)
    return batches


def search_bytes(model, search, source_length: int, limit: int) -> int:
    """Estimates the bytes of a search for one source; fitted to float32 peaks on a CPU."""
    vocab_size = model.config.output_vocab_size
    configs = [member.config for member in getattr(model, "models", [model])]
    per_position = sum(config.num_decoder_layers * config.d_model for config in configs)
    candidates = min(2 * getattr(search, "beam_size", 0), vocab_size)
    # Logits and their softmax; the best candidates; the keys and values of the answers, twice.
    row = 12 * vocab_size + 160 * candidates + 20 * per_position * limit
    return search.width * row + 8 * per_position * source_length


def streams_that_fit(model, search, source_length: int, limit: int, num_streams: int) -> int:
    """Returns how many of `num_streams` searches fit into free memory; raises an error if none."""
    free = free_memory()
    needed = search_bytes(model, search, source_length, limit)
    if free is None or num_streams * needed <= free:
        return num_streams
    if needed > free:
        raise UserError(
            f"The search for the answers to a source of {source_length:,} tokens needs about "
            f"{needed / _GIGABYTE:.1f} GB of memory, of which {free / _GIGABYTE:.1f} GB are free; "
            f"use fewer beams or samples. Received: {search.width:,} beams or samples"
        )
    return int(free // needed)


def free_memory() -> float | None:
    """Returns the bytes that a search or a step may use; None if they are unknown."""
    # Also the limit for accelerators, which rarely have more memory than their machine.
    try:
        lines = pathlib.Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    available = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    return _USABLE * available[0] if available else None
