"""Settings of `train` that are fields of `TransformerConfig` and `TrainingRecipe`."""

from keras_transformer.cli.arguments import (
    non_negative_float,
    positive_float,
    positive_int,
    rate,
)
from keras_transformer.cli.setting import Setting

# Without the vocabulary's size, which the text decides, and the longest sentence (table data).
MODEL: tuple[Setting, ...] = (
    Setting(
        "num_encoder_layers",
        positive_int,
        "encoder blocks (default: the preset's)",
        metavar="N",
    ),
    Setting(
        "num_decoder_layers",
        positive_int,
        "decoder blocks (default: the preset's)",
        metavar="N",
    ),
    Setting("d_model", positive_int, "width of the model (default: the preset's)", metavar="N"),
    Setting(
        "intermediate_dim",
        positive_int,
        "width inside the feed-forward layers (default: the preset's)",
        metavar="N",
    ),
    Setting(
        "num_heads",
        positive_int,
        "attention heads, a divisor of the width (default: the preset's)",
        metavar="N",
    ),
    Setting(
        "dropout",
        rate,
        "share of activations dropped in training (default: the preset's)",
        metavar="RATE",
    ),
    Setting(
        "attention_dropout",
        rate,
        "the same for attention weights (default: the preset's)",
        metavar="RATE",
    ),
    Setting(
        "activation_dropout",
        rate,
        "the same inside the feed-forward layers (default: the preset's)",
        metavar="RATE",
    ),
    Setting(
        "key_dim",
        positive_int,
        "size of a head's queries and keys (default: the preset's, or else width / heads)",
        metavar="N",
    ),
    Setting(
        "value_dim",
        positive_int,
        "size of a head's values (default: the preset's, or else width / heads)",
        metavar="N",
    ),
    Setting(
        "activation",
        str,
        "activation of the feed-forward layers, by its Keras name, e.g. relu or gelu "
        "(default: the preset's)",
        metavar="NAME",
    ),
    Setting(
        "norm",
        str,
        "layer normalisation after each sub-layer, as in the paper (post), or before it, "
        "which is steadier (pre) (default: the preset's)",
        choices=("post", "pre"),
        metavar="PLACE",
    ),
    Setting(
        "position",
        str,
        "positions as sines (sinusoidal), as in the paper, or learned for sentences up to "
        "max_length (learned) (default: the preset's)",
        choices=("sinusoidal", "learned"),
        metavar="KIND",
    ),
    Setting(
        "use_bias",
        bool,
        "add biases to the attention's maps of queries, keys, values and output "
        "(default: the preset's)",
    ),
    Setting(
        "norm_epsilon",
        positive_float,
        "added to the variance in the layer normalisations (default: the preset's)",
        metavar="EPSILON",
    ),
)

# Without the number of steps and of checkpoints, which stand with the run's own settings.
OPTIMIZATION: tuple[Setting, ...] = (
    Setting(
        "tokens_per_batch",
        positive_int,
        "subwords in a batch, padding included, on each side, over all GPUs "
        "(default: the preset's)",
        metavar="N",
    ),
    Setting(
        "peak_learning_rate",
        positive_float,
        "learning rate at the end of the warm-up (default: the preset's)",
        metavar="RATE",
    ),
    Setting(
        "warmup_steps",
        positive_int,
        "steps until the peak; from there it falls with the square root of the step "
        "(default: the preset's)",
        metavar="N",
    ),
    Setting(
        "label_smoothing",
        rate,
        "probability that the target gives to the other subwords (default: the preset's)",
        metavar="EPSILON",
    ),
    Setting(
        "clip_norm",
        positive_float,
        "clip the gradient's norm (default: the preset's)",
        metavar="NORM",
    ),
    Setting(
        "beta_1",
        rate,
        "Adam's decay of the mean of gradients (default: the preset's)",
        metavar="RATE",
    ),
    Setting(
        "beta_2",
        rate,
        "Adam's decay of the mean of squared gradients (default: the preset's)",
        metavar="RATE",
    ),
    Setting("epsilon", positive_float, "Adam's epsilon (default: the preset's)", metavar="EPSILON"),
)

SEARCH: tuple[Setting, ...] = (
    Setting(
        "beam_size",
        positive_int,
        "number of hypotheses followed at once; 1 is greedy (default: the preset's)",
        metavar="N",
    ),
    Setting(
        "length_penalty",
        non_negative_float,
        "exponent of the length penalty; larger gives longer answers, 0 none "
        "(default: the preset's)",
        metavar="ALPHA",
    ),
    Setting(
        "length_normalization",
        str,
        "length penalty ((5+length)/6)^ALPHA, as in the paper (gnmt), or length^ALPHA "
        "(length) (default: the preset's)",
        choices=("gnmt", "length"),
        metavar="KIND",
    ),
)
