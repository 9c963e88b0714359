"""The `keras-transformer` command: one module per subcommand, with slow imports in functions."""

import os
import signal
import sys
from collections.abc import Sequence

from keras_transformer.errors import StopSignals


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand with the arguments after the program's name, and returns its exit status.

    The status is 0 for success, 2 for a mistake of the user, 128 plus the number of the signal that
    stopped the command (130 after Ctrl-C), 141 for a closed output pipe, and 1 for other errors.
    """
    # Otherwise a file opened later takes a closed stream's number, and libraries print into it.
    for name, mode in (("stdin", "r"), ("stdout", "r"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed; writing an answer to it must fail
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
    try:
        with StopSignals(sys.stderr.write):
            # Imported here, so that Ctrl-C during the imports also prints one line.
            from keras_transformer.cli import application

            return application.main(argv)
    except KeyboardInterrupt as interrupt:
        sys.stderr.write("keras-transformer: interrupted\n")
        return 128 + getattr(interrupt, "signal_number", signal.SIGINT)
