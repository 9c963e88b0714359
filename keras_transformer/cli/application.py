"""Entry point of `keras-transformer`: runs a subcommand and prints an error as one line."""

import argparse
import contextlib
import functools
import importlib
import io
import itertools
import logging
import os
import re
import signal
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from keras_transformer import __version__
from keras_transformer.cli.progress import say
from keras_transformer.cli.task_commands import commands_of
from keras_transformer.errors import NO_ROOM, did_you_mean
from keras_transformer.files import read_toml
from keras_transformer.inference.tasks import find_installed_tasks, known_tasks
from keras_transformer.layouts import SAVED_MODEL_FILE, find_config

PROGRAM = "keras-transformer"
_UNEXPECTED_ERROR = 1
_USAGE_ERROR = 2
_BY_SIGNAL = 128  # plus the signal's number
_BROKEN_PIPE = _BY_SIGNAL + 13  # SIGPIPE, which Windows does not have
_LONGEST_ERROR = 400  # characters


class CommandParser(argparse.ArgumentParser):
    """An `ArgumentParser` with one-line errors, whose help keeps the line breaks of texts."""

    def __init__(self, **options):
        layout = argparse.RawDescriptionHelpFormatter
        layout = functools.partial(layout, max_help_position=28, width=100)
        super().__init__(formatter_class=layout, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Prints a message on one line and exits."""
        line = " ".join(message.split())
        self.exit(_USAGE_ERROR, f"{self.prog}: error: {line} (see `{self.prog} --help`)\n")


def command_modules() -> dict[str, str]:
    """Returns the module of each command.

    For the command NAME, its `NAME_options(parser)` adds the options, and `run_NAME(arguments)`
    does the work. `help.toml` in its folder has the rest of the help.
    """
    return {
        "quickstart": "keras_transformer.quickstart.command",
        "vocab": "keras_transformer.cli.prepare",
        "train": "keras_transformer.cli.train",
        **{
            name: module
            for task in known_tasks()
            for name, module in commands_of(task).commands.items()
        },
        "evaluate": "keras_transformer.cli.evaluate",
        **dict.fromkeys(("import", "attend", "average"), "keras_transformer.cli.models"),
        **dict.fromkeys(("export", "serve"), "keras_transformer.cli.export"),
    }


def build_parser(command: str | None = None) -> CommandParser:
    """Returns the parser, with the options of one command; None for those of all commands."""
    if command not in command_modules():
        find_installed_tasks()  # The command of an installed package, or the list of all commands.
    parser = CommandParser(prog=PROGRAM, **_help("keras_transformer.cli", PROGRAM))
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", title="commands (`COMMAND --help` for each)"
    )
    for name, module in command_modules().items():
        command_parser = commands.add_parser(name, **_help(module.rpartition(".")[0], name))
        if command in (None, name):
            imported = importlib.import_module(module)
            getattr(imported, f"{name}_options")(command_parser)
            run = getattr(imported, f"run_{name}")
            command_parser.set_defaults(run=run, fail=command_parser.error)
    return parser


def _help(package: str, name: str) -> dict[str, Any]:
    """Returns the help of a command, in a package, as arguments of its parser."""
    texts = read_toml(importlib.import_module(package).__file__ or "", "help.toml")[name]
    example = textwrap.indent(texts.pop("example"), "  ")
    return {**texts, "epilog": f"example:\n\n{example}"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand; see `keras_transformer.cli.main`."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = build_parser(words[0] if words else "")
    try:
        _check_spelling(parser, words)
        arguments, unknown = parser.parse_known_args(words)
        if arguments.command is None:
            parser.error("a command is required")
        if unknown:
            arguments.fail(f"unrecognized arguments: {' '.join(unknown)}")
    except SystemExit as stop:  # after the help or an error
        return int(stop.code or 0)
    try:
        with _library_messages(arguments.command):
            _check_models(arguments)
            arguments.run(arguments)
        sys.stdout.flush()  # finds a full disk or a closed pipe before Python exits
        return 0
    except BrokenPipeError:
        _silence_stdout()
        return _BROKEN_PIPE
    except KeyboardInterrupt as interrupt:
        status = _BY_SIGNAL + getattr(interrupt, "signal_number", signal.SIGINT)
        return _report(arguments.command, str(interrupt) or "interrupted", status)
    except Exception as error:
        if os.environ.get("KERAS_TRANSFORMER_DEBUG") == "1":
            raise
        line = describe(error)
        if isinstance(error, ValueError | OSError):
            _silence_stdout()
            return _report(
                arguments.command, f"error: {_name_flags(line, arguments)}", _USAGE_ERROR
            )
        if not _no_room(error):
            line += f" ({type(error).__name__}; KERAS_TRANSFORMER_DEBUG=1 shows where)"
        return _report(arguments.command, f"error: {line}", _UNEXPECTED_ERROR)


def _check_spelling(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Ends with a suggestion if the command or an option is unknown; argparse has none."""
    commands: Any = next(a.choices for a in parser._actions if a.dest == "command")
    chosen = commands.get(words[0], parser) if words else parser
    if words and chosen is parser and not words[0].startswith("-"):
        parser.error(f"unknown command {words[0]!r}{did_you_mean(words[0], commands)}")
    known = chosen._option_string_actions
    for word in itertools.takewhile("--".__ne__, words):
        option = word.partition("=")[0]
        if re.fullmatch(r"--?[a-zA-Z][\w-]*", option) and option not in known:
            chosen.error(f"unknown option {option}{did_you_mean(option, known)}")


def _check_models(arguments: argparse.Namespace) -> None:
    """Raises a `UserError` if a `--model` is missing, before the command loads TensorFlow."""
    if "--model" in arguments.fail.__self__._option_string_actions and (named := arguments.model):
        for directory in [named] if isinstance(named, str) else named:
            if not os.path.isfile(os.path.join(directory, SAVED_MODEL_FILE)):
                find_config(directory)


@contextlib.contextmanager
def _library_messages(command: str) -> Iterator[None]:
    """Writes the library's log messages to standard error; warnings begin with their level."""
    logger, handler = logging.getLogger("keras_transformer"), _MessageHandler()
    before = logger.level, logger.propagate
    handler.name = command
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])  # unlike an assignment, clears the caches of child loggers
        logger.propagate = before[1]


class _MessageHandler(logging.Handler):
    def emit(self, record):
        line = " ".join(record.getMessage().split())
        if record.levelno >= logging.WARNING:
            line = f"{PROGRAM} {self.name}: {record.levelname.lower()}: {line}"
        say(line)


def describe(error: BaseException) -> str:
    """Returns an error as one line, without its type, and with the file if it is known."""
    if full := _no_room(error):
        return full
    if type(error).__name__ in ("ResourceExhaustedError", "MemoryError"):
        return "out of memory; use a smaller --batch-size, or --micro-batches 2 or more in training"
    text = str(error)
    if "Detected at node" in text or text.startswith("in user code"):
        # An error in a graph has a trace; its last line is the reason.
        lines = [line.strip() for line in text.splitlines()]
        text = [line for line in lines if line and not line.startswith("[[")][-1]
    text = " ".join(text.split()) or type(error).__name__
    if isinstance(error, io.UnsupportedOperation) and text == "not writable":
        return "standard output is closed"
    if isinstance(error, OSError):
        # HDF5 hides the reason in a long text.
        if hidden := re.search(r"name = '([^']*)'.*error message = '([^']*)'", text):
            return f"{hidden[2]}: {hidden[1]!r}"
        if error.strerror:
            return error.strerror + (f": {str(error.filename)!r}" if error.filename else "")
    return text if len(text) <= _LONGEST_ERROR else text[:_LONGEST_ERROR] + "..."


def _no_room(error: BaseException) -> str | None:
    """Returns the system's message of a full disk if a TensorFlow error contains it, else None."""
    if not type(error).__module__.startswith("tensorflow."):
        return None
    for number in NO_ROOM:
        reason = os.strerror(number)
        if match := re.search(rf"(?:(/[^;{{}}\n]*); )?{re.escape(reason)}", str(error)):
            return f"{reason}: {match[1]!r}" if match[1] else reason
    return None


def _name_flags(line: str, arguments) -> str:
    """Returns an error with `--vocab-size 9` where the library has `vocab_size=9`."""
    if getattr(arguments, "config", None):
        return line  # A TOML file has Python's names.
    for action in arguments.fail.__self__._actions:
        flag = next((name for name in action.option_strings if name.startswith("--")), None)
        # A value that no option gave, such as the model's, keeps Python's name.
        if flag and getattr(arguments, action.dest, action.default) != action.default:
            line = re.sub(rf"\b{action.dest}=", f"{flag} ", line)
        if flag and "_" in action.dest:
            line = re.sub(rf"(?<![-\w/.'\"]){action.dest}(?![-\w/.'\"=])", flag, line)
    return line


def _report(command: str, line: str, status: int) -> int:
    with contextlib.suppress(OSError):  # standard error is closed; the exit status remains
        sys.stderr.write(f"{PROGRAM} {command}: {line}\n")
        sys.stderr.flush()
    return status


def _silence_stdout() -> None:
    """Silences standard output if a flush fails, because Python's flush at exit would fail too."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        # In tests, the stream is not a real file.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
