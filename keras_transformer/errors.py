"""The exception for mistakes of the user: files, arguments, directories."""


class UserError(ValueError):
    """Something the user asked for cannot be done; the message is one clear line.

    Raised for a missing or empty file, parallel files of different lengths, invalid UTF-8, a
    damaged model directory and the like. Commands print the message without a traceback.

    Example:

    >>> from keras_transformer.errors import UserError
    >>> str(UserError("Something is wrong."))
    'Something is wrong.'
    """
