"""Every setting of `train`, once: its flag, its line in the TOML file, its check and its text."""

from keras_transformer.cli.arguments import (
    TOKENIZE_CHOICES,
    non_negative_int,
    positive_float,
    positive_int,
    positive_ints,
    rate,
)
from keras_transformer.cli.setting import Setting

# Table of the TOML file -> heading of the help -> settings.
GROUPS: dict[str, tuple[str, tuple[Setting, ...]]] = {
    "data": (
        "sentence pairs: two text files, one TSV file, or a dataset by name",
        (
            Setting("source", str, "training text in the source language, .gz too", metavar="FILE"),
            Setting("target", str, "its translation, line by line", metavar="FILE"),
            Setting(
                "valid_source",
                str,
                "source text to choose and watch the model by; never the test set",
                metavar="FILE",
            ),
            Setting("valid_target", str, "its translation", metavar="FILE"),
            Setting("tsv", str, "training pairs as source TAB target", metavar="FILE"),
            Setting("valid_tsv", str, "validation pairs as source TAB target", metavar="FILE"),
            Setting(
                "dataset",
                str,
                "a translation set of tensorflow-datasets, e.g. wmt14_translate/de-en",
                metavar="NAME",
            ),
            Setting("source_language", str, "language to translate from, e.g. en", metavar="CODE"),
            Setting("target_language", str, "language to translate into, e.g. de", metavar="CODE"),
            Setting(
                "train_split", str, "split of the dataset to train on", "train", metavar="SPLIT"
            ),
            Setting(
                "valid_split",
                str,
                "split of the dataset to validate on",
                "validation",
                metavar="SPLIT",
            ),
            Setting("data_dir", str, "where tensorflow-datasets keeps its files", metavar="DIR"),
            Setting(
                "max_length",
                positive_int,
                "longest sentence in subwords with its end; longer pairs are left out "
                "(default: the preset's)",
                metavar="N",
            ),
        ),
    ),
    "vocabulary": (
        "vocabulary: subwords shared by both languages, built from the training text",
        (
            Setting(
                "vocabulary",
                str,
                "use this vocabulary (from `keras-transformer vocab`) and build none",
                metavar="FILE",
            ),
            Setting(
                "vocabulary_type",
                str,
                "bpe and unigram learn subwords from raw text; subword takes text that is already "
                "split by spaces, with @@ where a word goes on",
                "bpe",
                choices=("bpe", "unigram", "subword"),
                metavar="TYPE",
            ),
            Setting(
                "vocab_size",
                positive_int,
                "number of subwords (default: 8000; for subword text all there are)",
                metavar="N",
            ),
            Setting(
                "shared_vocabulary",
                bool,
                "one vocabulary and one embedding for both languages, or one for each",
                True,
            ),
            Setting(
                "bpe_dropout",
                rate,
                "share of bpe merges left out at random in training, which regularises; try 0.1 "
                "on small data",
                0.0,
                metavar="RATE",
            ),
        ),
    ),
    "model": (
        "model",
        (
            Setting(
                "preset",
                str,
                "model and training recipe: tiny, small, base, big, big_en_fr or table3_...",
                "small",
                metavar="NAME",
            ),
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
            Setting(
                "d_model", positive_int, "width of the model (default: the preset's)", metavar="N"
            ),
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
        ),
    ),
    "training": (
        "training recipe",
        (
            Setting(
                "max_steps",
                positive_int,
                "stop after this many steps (default: the preset's)",
                metavar="N",
            ),
            Setting(
                "max_minutes",
                positive_float,
                "stop after this many minutes (default: no limit)",
                metavar="M",
            ),
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
            Setting("seed", non_negative_int, "seed of weights, order and dropout", 1, metavar="N"),
        ),
    ),
    "checkpoints": (
        "checkpoints and validation",
        (
            Setting(
                "average_checkpoints",
                positive_int,
                "the finished model is the average of this many last checkpoints "
                "(default: the preset's)",
                metavar="N",
            ),
            Setting(
                "average_windows",
                positive_ints,
                "try these numbers of checkpoints instead, and keep the average with the best BLEU "
                "on the validation text, e.g. 1,5,10",
                metavar="N,N",
            ),
            Setting(
                "checkpoint_every",
                positive_int,
                "steps between checkpoints (default: one epoch)",
                metavar="N",
            ),
            Setting(
                "keep_checkpoints",
                positive_int,
                "number of checkpoints to keep (default: what the average needs)",
                metavar="N",
            ),
            Setting(
                "evaluate_every",
                positive_int,
                "steps between validations (default: one epoch)",
                metavar="N",
            ),
            Setting(
                "bleu_every",
                non_negative_int,
                "translate the validation text at every Nth validation; 0 never",
                1,
                metavar="N",
            ),
            Setting(
                "bleu_beam_size",
                positive_int,
                "beam of these translations; 1 is greedy and fast",
                1,
                metavar="N",
            ),
            Setting("bleu_lowercase", bool, "ignore case in this BLEU", False),
            Setting(
                "bleu_tokenize",
                str,
                "sacreBLEU's tokenizer (default: 13a; none for subword text)",
                choices=TOKENIZE_CHOICES,
                metavar="NAME",
            ),
        ),
    ),
    "machine": (
        "machine and output",
        (
            Setting("output", str, "model directory; an existing one is resumed", metavar="DIR"),
            Setting(
                "mixed_precision",
                bool,
                "compute in half precision (bfloat16); weights stay in single",
                False,
            ),
            Setting(
                "jit_compile",
                bool,
                "compile the training step with XLA: slow to start, faster on GPUs afterwards",
                False,
            ),
            Setting("gpus", positive_int, "number of GPUs (default: one, if any)", metavar="N"),
        ),
    ),
}

SETTINGS: dict[str, Setting] = {
    setting.name: setting for _, settings in GROUPS.values() for setting in settings
}
