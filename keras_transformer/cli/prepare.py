"""`keras-transformer prepare`: encodes sentence pairs once, into a directory to train from."""

import argparse
import pathlib

from keras_transformer.cli.arguments import add_command, positive_int
from keras_transformer.cli.backend import load_backend
from keras_transformer.cli.corpus_defaults import choose_vocab_size
from keras_transformer.cli.progress import Progress, say
from keras_transformer.cli.train_data import DATA_KINDS, data_kind, dataset_corpora, file_corpora
from keras_transformer.cli.train_settings import GROUPS, SETTINGS
from keras_transformer.cli.vocab import load_vocabulary
from keras_transformer.errors import UserError

_DESCRIPTION = """
Turns sentence pairs into subword ids and writes them to a directory, with the vocabulary and the
validation text: `train --prepared DIR` then begins at once, with the same model as from the text.
Worth it from about a million pairs on, and where several models are trained on the same pairs.

The text is read some thousand pairs at a time, so that it need not fit into memory. An earlier
prepared directory of the same name is replaced when the new one is complete.
"""

_USAGE = """keras-transformer prepare --output DIR [--vocabulary FILE] [options]
          --source FILE --target FILE --valid-source FILE --valid-target FILE
        | --tsv FILE --valid-tsv FILE
        | --dataset NAME --source-language CODE --target-language CODE"""

_EXAMPLE = """
keras-transformer prepare --source train.en --target train.de --valid-source valid.en \\
    --valid-target valid.de --vocab-size 37000 --output data/en-de
keras-transformer train --prepared data/en-de --preset base --output runs/en-de
"""

_DEFAULT_MAX_LENGTH = 256
# These are `train`'s own, or mean something else here.
_NOT_HERE = ("task", "prepared", "max_length", "bpe_dropout")
_SETTINGS = {
    table: [setting for setting in GROUPS[table][1] if setting.name not in _NOT_HERE]
    for table in ("data", "vocabulary")
}


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Adds the parser of this command.

    Args:
        commands: what `parser.add_subparsers` returned.

    Returns:
        The parser.
    """
    parser = add_command(commands, "prepare", "encode a large corpus once", _DESCRIPTION, _EXAMPLE)
    parser.usage = _USAGE
    parser.add_argument("--output", required=True, metavar="DIR", help="where the corpus goes")
    parser.add_argument(
        "--max-length",
        type=positive_int,
        default=_DEFAULT_MAX_LENGTH,
        metavar="N",
        help="longest sentence in subwords with its end; longer pairs are left out "
        "(default: %(default)s)",
    )
    for table, settings in _SETTINGS.items():
        group = parser.add_argument_group(GROUPS[table][0])
        for setting in settings:
            setting.add_to(group)
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Encodes the pairs and writes the directory.

    Args:
        arguments: parsed arguments.
    """
    values = {name: setting.default for name, setting in SETTINGS.items()}
    given = {name: getattr(arguments, name, None) for name in SETTINGS}
    values |= {name: value for name, value in given.items() if value is not None}
    kind = data_kind(values)
    from keras_transformer.data.prepared_corpus import check_prepared_directory

    check_prepared_directory(arguments.output)
    output = pathlib.Path(arguments.output).resolve()
    for path in (values[name] for name in DATA_KINDS[kind]):
        if pathlib.Path(path).resolve().parent == output:
            raise UserError(
                "The output folder would replace a file that the command reads. "
                f"Received: {arguments.output!r}, which holds {path!r}."
            )
    # What can be wrong with files is found before TensorFlow is loaded.
    corpora = None if kind == "dataset" else file_corpora(kind, values)
    vocabulary = load_vocabulary(values["vocabulary"]) if values["vocabulary"] else None
    load_backend()
    from keras_transformer.data import prepare_corpus
    from keras_transformer.data.tokenizer_pair import TokenizerPair

    train_corpus, valid_corpus = corpora or dataset_corpora(values)
    if values["vocab_size"] is None and values["vocabulary_type"] != "subword":
        values["vocab_size"] = choose_vocab_size(train_corpus)
    tokenizers = TokenizerPair(vocabulary) if vocabulary else _learn(train_corpus, values)
    total = len(train_corpus) + len(valid_corpus)
    with Progress("encoding", total, unit="pairs") as progress:
        prepared = prepare_corpus(
            arguments.output,
            train_corpus,
            valid_corpus,
            tokenizers.source,
            tokenizers.target,
            max_length=arguments.max_length,
            progress=progress.update,
        )
    split = prepared.splits["train"]
    say(
        f"wrote {arguments.output}: {split.pairs:,} training pairs, {split.tokens['source']:,} and "
        f"{split.tokens['target']:,} ids, {prepared.splits['valid'].pairs:,} validation pairs"
    )


def _learn(corpus, values):
    from keras_transformer.training import TrainingSettings
    from keras_transformer.training.training_data import make_tokenizers

    settings = TrainingSettings(
        tokenizer=values["vocabulary_type"],
        vocab_size=values["vocab_size"],
        shared_vocabulary=values["shared_vocabulary"],
    )
    return make_tokenizers(corpus, settings, report=say)
