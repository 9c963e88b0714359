"""`keras-transformer vocab`: learns a subword vocabulary from text files."""

import itertools
import pathlib
from typing import Any

from keras_transformer.cli.arguments import add_options
from keras_transformer.cli.progress import ProgressBar, say
from keras_transformer.cli.text_files import check_output
from keras_transformer.errors import UserError
from keras_transformer.files import require_file
from keras_transformer.settings.training_settings import TrainingSettings

_SUFFIXES = {"bpe": ".model", "unigram": ".model", "subword": ".txt"}


def define_options(parser):
    text = "UTF-8 text, .gz too"
    add_options(parser, {"--input FILE": text}, required=True, action="extend", nargs="+")
    text = "the vocabulary: .model for bpe and unigram, .txt for subword"
    add_options(parser, {"--output FILE": text}, required=True)
    text = "number of subwords, special ones and single bytes included (default: "
    text += f"{TrainingSettings.vocab_size}; with --type subword all)"
    add_options(parser, {"--size N": text}, dest="vocab_size")
    text = "kind of vocabulary (default: %(default)s)"
    parser.add_argument("--type", choices=tuple(_SUFFIXES), default="bpe", help=text)
    text = "piece that no text splits, such as the tag '>>fra<<' of a corpus; not with subword"
    add_options(parser, {"--symbols TEXT": text}, action="extend", nargs="+", default=[])


def run(arguments):
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
        if symbols:
            rule = "--symbols are for --type bpe and unigram; subword takes the text's own pieces"
            raise UserError(f"{rule}. Received: {symbols[0]!r}")
        tokenizer = build_subword_vocabulary(lines, max_size=size)
    else:
        size = size or TrainingSettings.vocab_size
        tokenizer = train_sentencepiece(lines, size, kind, allow_fewer=True, symbols=symbols)
    tokenizer.save(output.parent, output.stem)
    say(f"wrote {output}: {tokenizer.vocab_size:,} subwords ({kind})")


def _counted(lines):
    with ProgressBar("reading", unit="lines") as progress:
        for number, line in enumerate(lines, start=1):
            progress.update(number)
            yield line


def load_vocabulary(path: str | None) -> Any:
    """Returns the tokenizer in a file that this command wrote; None without a file."""
    if not path:
        return None
    from keras_transformer.data.tokenizer_pair import load_tokenizer_file

    file = require_file(path)
    if file.suffix not in _SUFFIXES.values():
        raise UserError(f"A vocabulary is a .model or .txt file. Received: {path!r}")
    return load_tokenizer_file(file)
