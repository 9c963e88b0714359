"""The `keras-transformer` command: one module per subcommand, importing what is slow inside."""

import os
import signal
import sys
from collections.abc import Sequence

from keras_transformer.errors import StopSignals


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand with the arguments after the program's name, and returns its exit status.

    It is 0, 2 for a mistake of the user, 128 plus the number of the signal that stopped the command
    (130 after Ctrl-C), 141 if the reader of the output went away, 1 for anything else.
    """
    # The null device takes their numbers too, or a file would, and with it what libraries print.
    for name, mode in (("stdin", "r"), ("stdout", "r"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed; an answer must not vanish: it is not writable
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
    try:
        with StopSignals(sys.stderr.write):
            # Imported here, so that Ctrl-C during the imports is one line too.
            from keras_transformer.cli import application

            return application.main(argv)
    except KeyboardInterrupt as interrupt:
        sys.stderr.write("keras-transformer: error: interrupted\n")
        return 128 + getattr(interrupt, "signal_number", signal.SIGINT)
