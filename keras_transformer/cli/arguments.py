"""Options: those of fields of settings, and those that several commands share."""

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import docstring_parser

from keras_transformer.cli.backend import load_backend_in_streams
from keras_transformer.errors import UserError
from keras_transformer.inference.tasks import get_task
from keras_transformer.settings.base import (
    Count,
    CountOrZero,
    Metavar,
    Positive,
    Settings,
    allowed_values,
    check_value,
    choices_of,
    plain_type,
    settings_fields,
    type_of,
)

_METAVARS = {int: "N", float: "NUMBER", str: "NAME"}
# Former names of options, by flag.
_OLD_FLAGS = {"--quantize": ("--quantization",)}
# Types of the values of options, by metavar.
_TYPES = {"N": Count, "I": CountOrZero, "P": Positive, "M": Positive, "GB": Positive}
# Options of constraints that take a number, and the classes of the constraints.
_CONSTRAINTS = {
    "min_length": "MinimumLength",
    "no_repeat_ngram": "NoRepeatNgrams",
    "repetition_penalty": "RepetitionPenalty",
}
CONSTRAINT_OPTIONS = ("--min-length", "--no-repeat-ngram", "--repetition-penalty",
                      "--suppress-unknown")  # fmt: skip
GLOSSARY_OPTIONS = ("--glossary", "--keep-placeholders")
SEARCH_OPTIONS = ("--beam-size", "--length-penalty", "--patience")
_LONG_LINES = {
    "split": "split translates it in parts, of whole sentences where possible, and joins the "
    "answers; it also splits lines of more sentences than the model was trained on",
    "truncate": "truncate reads only its beginning",
    "error": "error stops before anything is computed, or after earlier chunks of a pipe",
}


@dataclasses.dataclass(frozen=True)
class Option:
    """A field of settings as an option."""

    name: str  # in a TOML file; with dashes on the command line
    type: Any  # of the field, with its limits
    default: Any
    text: str  # the meaning, without a capital and a full stop
    unset: str | None = None  # the meaning of None

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def shown_default(self) -> Any:
        """The default in the help, None if there is nothing to show."""
        default = self.unset if self.default is None else self.default
        return str(default).lower() if isinstance(default, bool) else default


def options_of(settings: type[Settings]) -> dict[str, Option]:
    """Returns an option for each field of settings, by the name of the field.

    The texts are the `Args` of the class; their end `; None for ...` says what None stands for.
    """
    options = {}
    parsed = docstring_parser.parse(settings.__doc__ or "", docstring_parser.DocstringStyle.GOOGLE)
    texts = {entry.arg_name: entry.description or "" for entry in parsed.params}
    for name, field in settings_fields(settings).items():
        text, _, unset = " ".join(texts.get(name, "").split()).partition("; None for ")
        options[name] = Option(
            name,
            type_of(field),
            field.get_default(call_default_factory=True),
            text[:1].lower() + text[1:].removesuffix("."),
            unset.removesuffix(".") or None,
        )
    return options


def value_parser(annotation: Any) -> Callable[[str], Any]:
    """Returns the function that makes a value of a type from the text of an option."""
    kind, _ = plain_type(annotation)
    items = [plain_type(item)[0] for item in get_args(kind)]  # of a tuple

    def parse(text):
        try:
            if items:
                number = int if items[0] is int else str
                return check_value(annotation, tuple(map(number, text.split(","))))
            return check_value(annotation, kind(text))
        except ValueError:
            rule = f"expected {allowed_values(annotation)}"
            raise argparse.ArgumentTypeError(f"{rule}. Received: {text!r}") from None

    return parse


def add_option(group: argparse._ActionsContainer, option: Option) -> None:
    """Adds an option to a group of a parser; its value is None if it is not given."""
    kind, metadata = plain_type(option.type)
    default = "" if option.shown_default is None else f" (default: {option.shown_default})"
    settings: dict[str, Any] = {"help": (option.text + default).replace("%", "%%")}
    [metavar, *_] = [x.name for x in metadata if isinstance(x, Metavar)] + [_METAVARS.get(kind)]
    if kind is bool:
        settings |= {"action": argparse.BooleanOptionalAction}
    elif choices := choices_of(option.type):
        settings |= {"choices": choices}
    elif get_args(kind)[:1] == (str,):  # may be given several times
        settings |= {"action": "append", "metavar": metavar}
    else:
        settings |= {"type": value_parser(option.type), "metavar": metavar}
    group.add_argument(option.flag, *_OLD_FLAGS.get(option.flag, ()), **settings)


def add_options(group: argparse._ActionsContainer, texts: Mapping[str, str], **common: Any) -> None:
    """Adds options, from their texts by name and metavar.

    `{"--last N": "number", "--frequent N=100": "number", "--plan": "print it"}` adds an option with
    a rule for its value, one with a default too, which its help names, and a switch.
    """
    for option, text in texts.items():
        flag, _, metavar = option.partition(" ")
        metavar, _, default = metavar.partition("=")
        kind: dict[str, Any] = {"metavar": metavar} if metavar else {"action": "store_true"}
        if metavar in _TYPES:
            kind["type"] = value_parser(_TYPES[metavar])
        if default:
            kind["default"] = default  # which argparse parses
            text += " (default: %(default)s)"
        group.add_argument(flag, help=text, **kind, **common)


def is_given(arguments, option: str) -> bool:
    """Returns whether an option without a default, such as `"--beam-size"`, was given."""
    value = getattr(arguments, option.removeprefix("--").replace("-", "_"))
    return value is not None and value is not False


def add_line_options(parser, done: str) -> tuple[Any, Any]:
    """Adds the options of a command that answers lines; returns its groups of files and batches."""
    text = "text to answer, instead of --input"
    parser.add_argument("texts", nargs="*", metavar="TEXT", help=text)
    files = parser.add_argument_group("model and files")
    add_model_option(files, required=True)
    text = "UTF-8 text, one sentence a line, .gz too, or a pipe (default: standard input)"
    add_options(files, {"--input FILE": text})
    text = f"output file (.gz supported); written only after all lines have been {done}"
    add_options(files, {"--output FILE": f"{text} (default: standard output, line by line)"})
    add_search_options(parser)
    batches = add_batch_options(parser)
    text = f"number of lines that are read, sorted by length and {done} together"
    text += " (default: %(default)s; 1 on a terminal)"
    add_options(batches, {"--chunk-size N": text}, default=1024)
    return files, batches


def add_model_option(group, **options) -> None:
    """Adds `--model`, which may be given several times; its value is a list of directories."""
    text = "model directory; several models of one vocabulary answer together, by their average and"
    text += " with the settings of the first"
    add_options(group, {"--model DIR": text}, action="append", **options)


def add_language_options(group) -> None:
    texts = {
        "--source-language CODE": "language of the text, for a model of several languages",
        "--target-language CODE": "language to translate into (default: the model's, for both)",
    }
    add_options(group, texts)


def in_languages(pipeline: Any, arguments) -> Any:
    """Returns a pipeline in the languages that the options name."""
    given = arguments.source_language or None, arguments.target_language or None
    return pipeline.with_languages(*given) if any(given) else pipeline


def add_search_options(parser, n_best: bool = True) -> None:
    from keras_transformer.settings.presets import TrainingRecipe  # slow to import

    group = parser.add_argument_group("search")
    recipe = options_of(TrainingRecipe)
    for name in ("beam_size", "length_penalty"):
        add_option(group, dataclasses.replace(recipe[name], default=None, unset="the model's"))
    text = "stop a sentence when P times the beam size hypotheses have ended: 1 is faster, and may"
    text += " change an answer (default: search until no answer could become better)"
    add_options(group, {"--patience P": text})
    if n_best:
        text = "number of answers per line, at most the beam size (default: only the best; export: "
        text += "one for each beam)"
        add_options(group, {"--n-best N": text})


def add_constraint_options(parser) -> None:
    options = {
        "--min-length N": "minimum number of subwords in an answer, its end included",
        "--no-repeat-ngram N": "no sequence of N subwords may occur twice in an answer; 3 or 4 "
        "prevents loops",
        "--repetition-penalty P": "multiply the log-probability of each subword that occurs in the "
        "answer already by P; a number above 1 prevents repetition",
        "--suppress-unknown": "no answer may have the unknown token",
    }
    add_options(parser.add_argument_group("constraints"), options)


def choose_search(arguments, search: Any) -> Any:
    """Returns a model's search, changed by the options; a constraint replaces one of its kind."""
    from keras_transformer import decoding
    from keras_transformer.data.tokenizer import UNK_ID

    given = {name: value for name, value in vars(arguments).items() if value is not None}
    names = ("beam_size", "length_penalty", "patience", "n_best")
    options = {name: given[name] for name in names if name in given}
    if options and not isinstance(search, decoding.BeamSearch):
        search = decoding.BeamSearch(constraints=search.constraints)
    asked = [getattr(decoding, kind)(given[n]) for n, kind in _CONSTRAINTS.items() if n in given]
    # If the search suppresses other tokens, they stay suppressed.
    replaced = tuple(map(type, asked))
    if given.get("suppress_unknown"):
        asked.append(decoding.SuppressTokens((UNK_ID,)))
    if not options and not asked:
        return search
    kept = [c for c in search.constraints if not isinstance(c, replaced)]
    return dataclasses.replace(search, **options, constraints=(*kept, *asked))


def add_shortlist_option(group) -> None:
    text = "choose answers from the subwords in the model's shortlist"
    add_options(group, {"--shortlist": f"{text} (`keras-transformer shortlist`)"})


def use_shortlist(pipeline: Any, arguments) -> None:
    """Gives a pipeline the shortlist of its model directory if `--shortlist` asks for it."""
    if not getattr(arguments, "shortlist", False):
        return
    if not hasattr(pipeline, "shortlist"):
        rule = "--shortlist is for a model for translation"
        raise UserError(f"{rule}. Received: a model for {pipeline.task}")
    from keras_transformer.inference import Shortlist

    pipeline.shortlist = Shortlist.load(arguments.model[0], pipeline.tokenizers)


def add_glossary_options(group) -> None:
    text = "terms that answers must contain where their lines have the term of the source: UTF-8 "
    text += "text, .gz too, a term, a TAB and its translation in each line"
    add_options(group, {"--glossary FILE": text})
    text = "keep tags, fields in braces, printf's fields and URLs as they are, in the same number"
    add_options(group, {"--keep-placeholders": text})


def read_glossary(arguments) -> Any:
    """Returns the `Glossary` that the options describe, None without them.

    Call it before a model is loaded: the file may have errors.
    """
    from keras_transformer.inference.glossary import Glossary

    path, keeps = (getattr(arguments, name, None) for name in ("glossary", "keep_placeholders"))
    if path is not None:
        return Glossary.load(path, bool(keeps))
    return Glossary({}, keep_placeholders=True) if keeps else None


def add_batch_options(parser):
    """Adds the options of batches to a command that searches; returns their group."""
    group = parser.add_argument_group("batches")
    options = {
        "--batch-size N": "number of sentences computed at once (default: 128, or fewer with more "
        "than two beams)",
        "--streams N": "number of batches searched at the same time, which share the CPU's cores "
        "(default: with TensorFlow on a CPU the number of cores, otherwise 1)",
    }
    add_options(group, options)
    text = "type to compute in, one of float32, bfloat16 and auto, the one that this machine "
    text += "multiplies faster; bfloat16 changes some answers (default: auto; evaluate: float32)"
    add_options(group, {"--precision TYPE": text}, choices=("float32", "bfloat16", "auto"))
    add_quantize_option(group)
    return group


def add_quantize_option(group) -> None:
    """Adds `--quantize`."""
    text = "quantize the matrices in int8: faster for large models on x86; changes some answers"
    add_options(group, {"--quantize TYPE": text}, choices=("int8",))


def add_engine_option(group) -> None:
    """Adds `--engine` to a command for translators."""
    text = "program that searches instead of Keras: ctranslate2, faster for small models; its beam "
    text += "search differs, which changes some answers (pip install '.[ctranslate2]')"
    add_options(group, {"--engine NAME": text}, choices=("ctranslate2",))


def add_long_lines(group, choices: Sequence[str], default: str, note: str = "") -> None:
    """Adds `--long-lines` with these choices; `default` and `note` are texts for the help."""
    actions = "; ".join(_LONG_LINES[name] for name in choices)
    text = f"treatment of a source line that is longer than the model reads: {actions} (default: "
    add_options(group, {"--long-lines HOW": f"{text}{default}){note}"}, choices=choices)


def load_pipeline(arguments, task: str, precision: str = "auto") -> tuple[Any, dict[str, Any]]:
    """Returns the pipeline in `--model`, and the options of its search methods.

    `precision` is the default of `--precision`.
    """
    glossary = read_glossary(arguments)
    num_streams = load_backend_in_streams(arguments.streams)
    engine = getattr(arguments, "engine", None)  # Parsers have none.
    if engine and arguments.precision:
        rule = "--precision is for Keras; ctranslate2 computes in float32 or --quantize"
        raise UserError(f"{rule}. Received: --precision {arguments.precision}")
    # Beside products in int8, the other type matters little.
    if arguments.quantize or engine:
        precision = "float32"
    dtype = arguments.precision or precision
    pipeline = get_task(task).pipeline.load(arguments.model, dtype=dtype)
    if glossary is not None:
        glossary.give_to(pipeline)
    use_shortlist(pipeline, arguments)
    search = choose_search(arguments, pipeline.search)
    if engine:
        from keras_transformer.export import CTranslate2Engine

        pipeline.engine = CTranslate2Engine(pipeline, arguments.quantize, num_streams)
        pipeline.engine.check_search(search)
    elif arguments.quantize:
        pipeline.quantize()
    options = {"batch_size": arguments.batch_size, "num_streams": num_streams}
    return pipeline, options | {"search": search}
