"""Base of constraints that are saved with a search."""

from typing import Any

from keras_transformer.decoding.named_settings import NamedSettings
from keras_transformer.layers.dtypes import Tensor


class SavedConstraint(NamedSettings, kind="constraint"):
    """Base of constraints that have only settings, and no state."""

    def start(self, max_lengths: Tensor, width: int) -> tuple:
        return ()

    @classmethod
    def dict_of(cls, constraint: Any) -> dict:
        if type(constraint) not in cls._members.values():
            names = [member.__name__ for member in cls._members.values()]
            raise ValueError(
                f"Constraints that can be saved are {names}; give others to each call. "
                f"Received: {constraint!r}"
            )
        return constraint.to_dict()
