"""`vocab` and `prepare`: a vocabulary of text files, and pairs that are encoded once."""

import itertools
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from keras_transformer.cli import settings
from keras_transformer.cli.arguments import add_option, add_options
from keras_transformer.cli.backend import load_backend
from keras_transformer.cli.corpus_defaults import choose_vocab_size
from keras_transformer.cli.progress import ProgressBar, say
from keras_transformer.cli.task_commands import commands_of
from keras_transformer.cli.text_files import check_output
from keras_transformer.errors import UserError
from keras_transformer.files import require_file
from keras_transformer.inference.tasks import get_task
from keras_transformer.layouts import PREPARED_CORPUS
from keras_transformer.settings.training_settings import TrainingSettings

_SUFFIXES = {"bpe": ".model", "unigram": ".model", "subword": ".txt"}
# Only `train` has these, or their defaults differ here.
_NOT_HERE = ("task", "prepared", "max_length", "bpe_dropout", "also_valid")


def vocab_options(parser):
    text = "UTF-8 text, .gz too"
    add_options(parser, {"--input FILE": text}, required=True, action="extend", nargs="+")
    text = "the vocabulary: .model for bpe and unigram, .txt for subword"
    add_options(parser, {"--output FILE": text}, required=True)
    text = "number of subwords, special ones and single bytes included (default: "
    text += f"{TrainingSettings.vocab_size}; with --type subword all)"
    add_options(parser, {"--size N": text}, dest="vocab_size")
    text = "kind of vocabulary (default: %(default)s)"
    parser.add_argument("--type", choices=tuple(_SUFFIXES), default="bpe", help=text)
    add_option(parser, settings.all_options()["normalization"])
    text = "piece that no text splits, such as the tag '>>fra<<' of a corpus; not with subword"
    add_options(parser, {"--symbols TEXT": text}, action="extend", nargs="+", default=[])


def run_vocab(arguments):
    output = pathlib.Path(arguments.output)
    suffix = _SUFFIXES[arguments.type]
    if output.suffix != suffix:
        rule = f"The output of a {arguments.type} vocabulary must end in {suffix}"
        raise UserError(f"{rule}. Received: {arguments.output!r}")
    check_output(arguments.output, arguments.input)
    from keras_transformer.data import build_subword_vocabulary, train_sentencepiece
    from keras_transformer.data.corpora import open_text

    for path in arguments.input:
        require_file(path, is_reread=True)
        if next(iter(open_text(path)), None) is None:
            raise UserError(f"The input file {path!r} is empty.")
    lines = _counted(itertools.chain.from_iterable(map(open_text, arguments.input)))
    kind, size, symbols = arguments.type, arguments.vocab_size, arguments.symbols
    if kind == "subword":
        for name in ("symbols", "normalization"):
            if value := getattr(arguments, name):
                rule = f"--{name} goes with --type bpe and unigram; subword takes the text as it is"
                raise UserError(f"{rule}. Received: {value!r}")
        tokenizer = build_subword_vocabulary(lines, max_size=size)
    else:
        size = size or TrainingSettings.vocab_size
        options = {"normalization": arguments.normalization or TrainingSettings.normalization}
        options |= {"symbols": symbols, "allow_fewer": True}
        tokenizer = train_sentencepiece(lines, size, kind, **options)
    tokenizer.save(output.parent, output.stem)
    say(f"wrote {output}: {tokenizer.vocab_size:,} subwords ({kind})")


def _counted(lines):
    with ProgressBar("reading", unit="lines") as progress:
        for number, line in enumerate(lines, start=1):
            progress.update(number)
            yield line


def load_vocabulary(values: Mapping[str, Any]) -> Any:
    """Returns the tokenizer in the file of `--vocabulary`; None without a file."""
    path, known = values["vocabulary"], ("vocabulary", "prepared", "start_from")
    given = [name for name in known if values.get(name)]
    if given and values["normalization"] != TrainingSettings.normalization:
        rule = f"--{given[0].replace('_', '-')} brings a vocabulary with its own normalization"
        raise UserError(f"{rule}. Received: --normalization {values['normalization']}")
    if not path:
        return None
    if not values["shared_vocabulary"] and get_task(values["task"]).shares_a_given_tokenizer:
        rule = "--vocabulary is one for both languages, without --no-shared-vocabulary"
        raise UserError(f"{rule}. Received: --vocabulary {path} --no-shared-vocabulary")
    from keras_transformer.data.tokenizer_pair import load_tokenizer_file

    file = require_file(path)
    if file.suffix not in _SUFFIXES.values():
        raise UserError(f"A vocabulary is a .model or .txt file. Received: {path!r}")
    return load_tokenizer_file(file)


def prepare_options(parser):
    add_options(parser, {"--output DIR": "folder of the corpus"}, required=True)
    add_options(parser, {"--max-length N=256": settings.all_options()["max_length"].text})
    text = "encode part I of P, with --vocabulary; the last of all parts writes the corpus"
    add_options(parser, {"--part I/P": text})
    settings.add_tables_of_text(parser, _NOT_HERE)


def run_prepare(arguments):
    values = settings.resolve(arguments) | {"bleu_every": 0}  # Nothing is scored.
    task = get_task("translation")
    commands = commands_of(task)
    kind = commands.data_kind(values)
    part = arguments.part and _parse_part(arguments.part, values["vocabulary"])
    PREPARED_CORPUS.check_output(arguments.output)
    # Errors in files are found before TensorFlow is loaded.
    vocabulary = load_vocabulary(values)
    train_corpus, valid_corpus, *_ = commands.open_corpora(kind, values)
    load_backend()
    from keras_transformer.data import prepare_corpus
    from keras_transformer.data.tokenizer_pair import TokenizerPair

    if vocabulary:
        tokenizers = TokenizerPair(vocabulary)
    else:
        pieces, size = values["vocabulary_type"], values["vocab_size"]
        if size is None and pieces != "subword":
            size = choose_vocab_size(train_corpus)
        is_shared = values["shared_vocabulary"]
        learned = TrainingSettings(
            tokenizer=pieces,
            vocab_size=size,
            normalization=values["normalization"],
            shared_vocabulary=is_shared,
        )
        tokenizers = task.learn_tokenizers(train_corpus, learned, None, say)
    corpora = (train_corpus, valid_corpus)
    num_parts = part[1] if part else 1
    total = len(train_corpus) // num_parts + len(valid_corpus)
    with ProgressBar("encoding", total, unit="pairs") as progress:
        options = {"max_length": arguments.max_length, "progress": progress.update, "part": part}
        prepared = prepare_corpus(arguments.output, *corpora, *tokenizers, **options)
    if prepared is None:
        return  # other parts are missing
    split = prepared.splits["train"]
    say(
        f"wrote {arguments.output}: {split.pairs:,} training pairs, {split.tokens['source']:,} and "
        f"{split.tokens['target']:,} ids, {prepared.splits['valid'].pairs:,} validation pairs"
    )


def _parse_part(text, vocabulary):
    match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
    number, num_parts = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= num_parts:
        raise UserError(f"--part is I/P, with I from 1 to P. Received: {text!r}")
    if not vocabulary:
        rule = "--part needs --vocabulary, a file of `keras-transformer vocab` for all parts"
        raise UserError(f"{rule}. Received: --part {text}")
    return number, num_parts
