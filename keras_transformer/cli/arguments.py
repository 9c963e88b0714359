"""Options that several commands share, each with the function that does what it asks for."""

import argparse
import contextlib
import ctypes
import dataclasses
import mmap
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer.errors import UserError
from keras_transformer.inference.tasks import get_task
from keras_transformer.settings.setting import (
    COUNT,
    COUNT_OR_ZERO,
    POSITIVE,
    SWITCH,
    TEXTS,
    Setting,
    declarations,
)

# Rules for the values of options, by metavar.
_RULES = {"N": COUNT, "I": COUNT_OR_ZERO, "P": POSITIVE, "M": POSITIVE, "GB": POSITIVE}
# Default number of parts of a batch that `train` computes at the same time on a CPU.
TRAINING_STREAMS = 2
# Options of constraints that take a number, and the classes of the constraints.
_CONSTRAINTS = {
    "min_length": "MinimumLength",
    "no_repeat_ngram": "NoRepeatNgrams",
    "repetition_penalty": "RepetitionPenalty",
}
CONSTRAINT_OPTIONS = ("--min-length", "--no-repeat-ngram", "--repetition-penalty")
CONSTRAINT_OPTIONS += ("--suppress-unknown",)
SEARCH_OPTIONS = ("--beam-size", "--length-penalty", "--patience")
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # options of glibc's `mallopt`
_MAX_HEAP_GROWTH = 2**33  # bytes of address space
_LONG_LINES = {
    "split": "split translates it in parts, of whole sentences where possible, and joins the "
    "answers; it also splits lines of more sentences than the model was trained on",
    "truncate": "truncate reads only its beginning",
    "error": "error stops before anything is computed",
}


def add_options(group: argparse._ActionsContainer, texts: Mapping[str, str], **common: Any) -> None:
    """Adds options, from their texts by name and metavar.

    `{"--last N": "number", "--frequent N=100": "number", "--plan": "print it"}` adds an option with
    a rule for its value, one with a default too, which its help names, and a switch.
    """
    for option, text in texts.items():
        flag, _, metavar = option.partition(" ")
        metavar, _, default = metavar.partition("=")
        kind: dict[str, Any] = {"metavar": metavar} if metavar else {"action": "store_true"}
        if rule := _RULES.get(metavar):
            kind["type"] = rule
        if default:
            kind["default"] = rule(default) if rule else default
            text += " (default: %(default)s)"
        group.add_argument(flag, help=text, **kind, **common)


def add_setting(group: argparse._ActionsContainer, option: Setting) -> None:
    """Adds the option of a setting to a group of a parser; None means that it is not given."""
    default, rule = option.unset if option.default is None else option.default, option.rule
    shown = str(default).lower() if isinstance(default, bool) else default
    text = option.text + (f" (default: {shown})" if default is not None else "")
    if rule is SWITCH:
        action = argparse.BooleanOptionalAction
        group.add_argument(option.flag, action=action, default=None, help=text)
        return
    values: dict[str, Any] = {"choices": rule.choices} if rule.choices else {"type": rule}
    if rule is TEXTS:
        values = {"action": "append"}
    metavar = option.metavar or rule.metavar
    group.add_argument(option.flag, **values, metavar=metavar, help=text.replace("%", "%%"))


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


def add_search_options(parser, n_best: bool = True) -> None:
    from keras_transformer.settings.presets import TrainingRecipe  # slow to import

    group = parser.add_argument_group("search")
    recipe = declarations(TrainingRecipe)
    for name in ("beam_size", "length_penalty"):
        add_setting(group, dataclasses.replace(recipe[name], default="the model's"))
    text = "stop a sentence when P times the beam size hypotheses have ended: 1 is faster, and may"
    text += " change an answer (default: search until no answer could become better)"
    add_options(group, {"--patience P": text})
    if n_best:
        text = "number of answers per line, at most the beam size (default: only the best)"
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
    text += "multiplies faster; bfloat16 changes some answers (default: float32)"
    add_options(group, {"--precision TYPE": text}, choices=("float32", "bfloat16", "auto"))
    return group


def add_long_lines(group, choices: Sequence[str], default: str, note: str = "") -> None:
    """Adds `--long-lines` with these choices; `default` and `note` are texts for the help."""
    actions = "; ".join(_LONG_LINES[name] for name in choices)
    text = f"treatment of a source line that is longer than the model reads: {actions} (default: "
    add_options(group, {"--long-lines HOW": f"{text}{default}){note}"}, choices=choices)


def load_pipeline(arguments, task: str) -> tuple[Any, dict[str, Any]]:
    """Returns the pipeline in `--model`, and the options of its search methods."""
    num_streams = load_backend_in_streams(arguments.streams)
    pipeline = get_task(task).pipeline.load(arguments.model, dtype=arguments.precision)
    use_shortlist(pipeline, arguments)
    options = {"batch_size": arguments.batch_size, "num_streams": num_streams}
    return pipeline, options | {"search": choose_search(arguments, pipeline.search)}


def load_backend(trains: bool = False) -> bool:
    """Imports Keras, finds the GPUs and returns whether the backend is TensorFlow on a CPU.

    A training has its batches from TensorFlow on every backend.
    """
    # Otherwise, threads of torch that wait keep the cores busy, which slows down all programs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with _hidden_standard_error():
        import keras

        backend = keras.backend.backend()
        if backend != "tensorflow":
            _keep_freed_memory()
        if backend == "jax" and trains:
            import jax

            if jax.process_count() > 1:  # Their connection prints messages.
                from jax.experimental import multihost_utils

                multihost_utils.sync_global_devices("connected")
        if backend == "tensorflow" or trains:
            import tensorflow as tf
        # TensorFlow prints messages if there is no GPU.
        return backend == "tensorflow" and not tf.config.list_physical_devices("GPU")


def _keep_freed_memory():
    """Lets the C library keep freed memory, in large pages if the system offers them.

    By default it returns freed memory to the system. A training step frees its tensors, and getting
    their memory back, in small pages, takes time on a CPU. This has an effect only before the
    backend starts its threads.
    """
    if sys.platform != "linux" or not hasattr(library := ctypes.CDLL(None), "mallopt"):  # no glibc
        return
    for option, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_ARENA_MAX, 1)):
        library.mallopt(option, value)
    # Grows the heap at once, to ask for large pages. They take no room before they are used.
    size = min(_MAX_HEAP_GROWTH, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.free.argtypes = [ctypes.c_void_p]
    if address := library.malloc(size):
        start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        library.madvise(start, address + size - start, mmap.MADV_HUGEPAGE)
        library.free(address)


@contextlib.contextmanager
def _hidden_standard_error():
    """Hides standard error, because TensorFlow has no setting that stops all of its messages."""
    if os.environ.get("KERAS_TRANSFORMER_DEBUG") == "1":
        yield
        return
    # TensorFlow reads this once, when it is imported; 3 shows only fatal errors.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        saved = os.dup(2)  # C++ writes to the file descriptor, not to `sys.stderr`
    except OSError:  # there is no standard error to hide
        yield
        return
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def load_backend_in_streams(
    num_streams: int | None, most: int | None = None, trains: bool = False
) -> int:
    """Calls `load_backend`, divides the cores of a CPU among streams, and returns their number.

    Small operations are faster with one thread than with several. The default is one stream for
    each core, at most `most`.
    """
    if not load_backend(trains):
        return num_streams or 1
    import tensorflow as tf

    # The number of cores that the process may use, if the system can tell.
    has_call = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_call else os.cpu_count() or 1
    num_streams = num_streams or min(cores, most or cores)
    # TensorFlow's own setting has priority. The number cannot be set after the first computation.
    if "TF_NUM_INTRAOP_THREADS" not in os.environ:
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(max(1, cores // num_streams))
    return num_streams
