"""Every setting of `train`, once: its flag, its line in the TOML file, its check and its text."""

from keras_transformer.cli.arguments import (
    TOKENIZE_CHOICES,
    non_negative_int,
    positive_float,
    positive_int,
    positive_ints,
    random_seed,
    rate,
)
from keras_transformer.cli.recipe_settings import MODEL, OPTIMIZATION, SEARCH
from keras_transformer.cli.setting import Setting
from keras_transformer.parsing.cli.settings import PARSING

# Table of the TOML file -> heading of the help -> settings.
GROUPS: dict[str, tuple[str, tuple[Setting, ...]]] = {
    "data": (
        "sentence pairs: two text files, one TSV file, or a dataset by name",
        (
            Setting(
                "task",
                str,
                "translation learns from sentence pairs, parsing from trees",
                "translation",
                choices=("translation", "parsing"),
                metavar="TASK",
            ),
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
            Setting(
                "prepared",
                str,
                "encoded pairs that `keras-transformer prepare` wrote, validation pairs included",
                metavar="DIR",
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
    "parsing": ("trees, for --task parsing", PARSING),
    "vocabulary": (
        "vocabulary: subwords shared by both languages, built from the training text",
        (
            Setting(
                "vocabulary",
                str,
                "use this vocabulary (from `keras-transformer vocab`) and build none; in parsing "
                "for the words",
                metavar="FILE",
            ),
            Setting(
                "vocabulary_type",
                str,
                "bpe and unigram learn subwords from raw text; subword takes text that is already "
                "split by spaces, with @@ where a word goes on; in parsing the words as they are",
                "bpe",
                choices=("bpe", "unigram", "subword"),
                metavar="TYPE",
            ),
            Setting(
                "vocab_size",
                positive_int,
                "number of subwords (default: by the number of pairs; with --preset 8000; for "
                "subword text all there are)",
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
                "model and training recipe: tiny, small, base, big, big_en_fr or table3_...; "
                "parsing_small (the default in parsing), parsing or parsing_semi_supervised "
                "(default: by the number of pairs)",
                metavar="NAME",
            ),
            *MODEL,
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
            *OPTIMIZATION,
            Setting("seed", random_seed, "seed of weights, order and dropout", 1, metavar="N"),
        ),
    ),
    "checkpoints": (
        "checkpoints and validation",
        (
            Setting(
                "average_checkpoints",
                positive_int,
                "the finished model is the average of the last N checkpoints, or a better single "
                "one by BLEU or F1 on the validation set (default: the preset's)",
                metavar="N",
            ),
            Setting(
                "average_windows",
                positive_ints,
                "try several N, e.g. 1,5,10: the finished model is the best average of the last N "
                "checkpoints, or a better single one by BLEU or F1 on the validation set",
                metavar="N,N",
            ),
            Setting(
                "checkpoint_every",
                positive_int,
                "steps between checkpoints (default: by the number of pairs; with --preset one "
                "epoch)",
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
                "steps between validations (default: by the number of pairs; with --preset one "
                "epoch)",
                metavar="N",
            ),
            Setting(
                "patience",
                positive_int,
                "stop after N validations in a row without a better loss, BLEU or F1 (default: by "
                "the number of pairs; with --preset never)",
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
    "search": ("search that the finished model answers with", SEARCH),
    "machine": (
        "machine and output",
        (
            Setting("output", str, "model directory; an existing one is resumed", metavar="DIR"),
            Setting(
                "tensorboard",
                bool,
                "write figures, sample translations and attention maps for TensorBoard into the "
                "folder tensorboard of the model directory",
                False,
            ),
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
            Setting(
                "micro_batches",
                positive_int,
                "cut each batch into N parts and sum their gradients: less memory, the same step",
                1,
                metavar="N",
            ),
            Setting(
                "packed_width",
                positive_int,
                "put several pairs into each row of N positions: one batch shape, less padding",
                metavar="N",
            ),
            Setting(
                "deterministic",
                bool,
                "the same bits every time, also when resumed; slower on GPUs",
                False,
            ),
            Setting("gpus", positive_int, "number of GPUs (default: one, if any)", metavar="N"),
        ),
    ),
}

SETTINGS: dict[str, Setting] = {
    setting.name: setting for _, settings in GROUPS.values() for setting in settings
}
