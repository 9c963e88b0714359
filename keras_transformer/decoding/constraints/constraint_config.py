"""Constraints as plain dictionaries, for the files that a model is saved with."""

import dataclasses

from keras_transformer.decoding.constraints.minimum_length import MinimumLength
from keras_transformer.decoding.constraints.no_repeat_ngrams import NoRepeatNgrams
from keras_transformer.decoding.constraints.repetition_penalty import RepetitionPenalty
from keras_transformer.decoding.constraints.suppress_tokens import SuppressTokens

_CONSTRAINTS = {
    "minimum_length": MinimumLength,
    "no_repeat_ngrams": NoRepeatNgrams,
    "repetition_penalty": RepetitionPenalty,
    "suppress_tokens": SuppressTokens,
}


def constraint_to_dict(constraint):
    """Returns the settings of a constraint as a dict with its `"name"`.

    Raises:
        ValueError: for one that has no place in a file, such as a user's own.

    Example:

    >>> constraint_to_dict(MinimumLength(3))
    {'name': 'minimum_length', 'length': 3}
    """
    for name, constraint_class in _CONSTRAINTS.items():
        if type(constraint) is constraint_class:
            return {"name": name, **dataclasses.asdict(constraint)}
    raise ValueError(
        f"Constraints that can be saved are {[c.__name__ for c in _CONSTRAINTS.values()]}; give "
        f"others to each call. Received: {constraint!r}"
    )


def constraint_from_dict(settings):
    """Returns the constraint that `constraint_to_dict` wrote down.

    Raises:
        ValueError: for an unknown name or setting, or a value that the constraint refuses.

    Example:

    >>> constraint_from_dict({"name": "suppress_tokens", "ids": [1]})
    SuppressTokens(ids=(1,))
    """
    settings = dict(settings)
    name = settings.pop("name", None)
    if not isinstance(name, str) or name not in _CONSTRAINTS:
        raise ValueError(
            f"The name of a constraint must be one of {list(_CONSTRAINTS)}. Received: name={name!r}"
        )
    known = [field.name for field in dataclasses.fields(_CONSTRAINTS[name])]
    if sorted(settings) != sorted(known):
        raise ValueError(
            f"The settings of the constraint {name} are {known}. "
            f"Received: settings={sorted(settings)!r}"
        )
    return _CONSTRAINTS[name](**settings)
