"""LoRA for a whole model: only small factors beside its linear maps train."""

import keras

from keras_transformer.checks import check_positive_integer
from keras_transformer.layers.effective_weights import all_maps


def enable_lora(model: keras.Model, rank: int = 8, lora_alpha: float | None = None) -> None:
    """Freezes a model, and adds the factors of LoRA to its linear maps; only these train then.

    Each `keras.layers.Dense` in the model gets them: those of attentions, of feed-forward networks
    and, in a model that you composed, your own. Embeddings, biases and norms stay as they are.
    Call it before `compile`, and after `quantize` if the matrices are to be integers.

    Args:
        model: A built model.
        rank: Number of columns of the first factor, and of rows of the second.
        lora_alpha: `lora_alpha / rank` multiplies the product of the factors; None for `rank`.

    Raises:
        ValueError: If the model has no linear map, or one that has LoRA already or is quantized in
            another mode than int8 or int4.

    Example:

    >>> model = keras_transformer.Transformer.from_preset("tiny", vocab_size=1000)
    >>> keras_transformer.training.enable_lora(model, rank=4)
    >>> all("lora" in weight.name for weight in model.trainable_weights)
    True

    Reference: Hu et al. (2021), "LoRA: Low-Rank Adaptation of Large Language Models".
    """
    check_positive_integer("rank", rank)
    parts = [part for part in all_maps(model) if isinstance(part, keras.layers.Dense)]
    if not parts:
        rule = "`model` must contain linear maps, layers of class `Dense`"
        raise ValueError(f"{rule}. Received: model={model!r}")
    for part in parts:
        if part.lora_enabled or part.quantization_mode not in (None, "int8", "int4"):
            state = "LoRA" if part.lora_enabled else f"quantization_mode={part.quantization_mode!r}"
            rule = "LoRA is for maps without it, plain or quantized in int8 or int4"
            raise ValueError(f"{rule}. Received: {part.path!r} with {state}")
    model.trainable = True  # The parts of a frozen model would stay frozen.
    factors = set()
    for part in parts:
        part.enable_lora(rank, lora_alpha)
        factors |= {id(part.lora_kernel_a), id(part.lora_kernel_b)}
    for weight in model.trainable_weights:
        if id(weight) not in factors:
            weight.trainable = False
