"""Searches as plain dictionaries, for the files that a model is saved with."""

import dataclasses

from keras_transformer.decoding.beam_search import BeamSearch
from keras_transformer.decoding.constraints.constraint_config import (
    constraint_from_dict,
    constraint_to_dict,
)
from keras_transformer.decoding.greedy import GreedySearch
from keras_transformer.decoding.sampling import Sampling

_SEARCHES = {"beam": BeamSearch, "greedy": GreedySearch, "sampling": Sampling}


def search_to_dict(search):
    """Returns the settings of a search as a dict that JSON can hold, with its `"name"`.

    Args:
        search: a `BeamSearch`, `GreedySearch` or `Sampling`.

    Returns:
        A dict.

    Raises:
        ValueError: for anything else, or a constraint that is not of this library.

    Example:

    >>> from keras_transformer.decoding import GreedySearch, search_to_dict
    >>> search_to_dict(GreedySearch())
    {'name': 'greedy'}
    """
    for name, search_class in _SEARCHES.items():
        if isinstance(search, search_class):
            fields = dataclasses.fields(search)
            settings = {field.name: getattr(search, field.name) for field in fields}
            constraints = [constraint_to_dict(one) for one in settings.pop("constraints")]
            if constraints:  # so that other configs stay readable for versions that knew none
                settings["constraints"] = constraints
            return {"name": name, **settings}
    raise ValueError(
        f"A search must be one of {[c.__name__ for c in _SEARCHES.values()]}. "
        f"Received: search={search!r}"
    )


def search_from_dict(settings):
    """Returns the search that `search_to_dict` wrote down.

    Args:
        settings: a dict with `"name"` and the arguments that differ from the defaults.

    Returns:
        A `BeamSearch`, `GreedySearch` or `Sampling`.

    Raises:
        ValueError: for an unknown name or setting, or a value that the search refuses.

    Example:

    >>> from keras_transformer.decoding import search_from_dict
    >>> search_from_dict({"name": "beam", "beam_size": 5}).beam_size
    5
    """
    settings = dict(settings)
    name = settings.pop("name", None)
    if not isinstance(name, str) or name not in _SEARCHES:
        raise ValueError(
            f"The name of a search must be one of {list(_SEARCHES)}. Received: name={name!r}"
        )
    known = [field.name for field in dataclasses.fields(_SEARCHES[name])]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise ValueError(
            f"The settings of a {name} search are {known}. Received: unknown settings={unknown!r}"
        )
    constraints = [constraint_from_dict(one) for one in settings.pop("constraints", ())]
    return _SEARCHES[name](**settings, constraints=constraints)
