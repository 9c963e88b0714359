"""The `keras-transformer` command: one module per subcommand, importing what is slow inside."""

from keras_transformer.cli.application import main

__all__ = ["main"]
