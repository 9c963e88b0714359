"""`ParsingSettings`: the settings of a training that only parsing has."""

from typing import Annotated

from pydantic import Field

from keras_transformer.parsing.linearization import Linearization
from keras_transformer.settings.base import (
    MAY_CHANGE,
    Changes,
    Count,
    CountOrZero,
    Settings,
    settings_dataclass,
)


@settings_dataclass
class ParsingSettings(Settings):
    """The `task_settings` of `TrainingSettings` for parsing.

    Args:
        linearization: Changes to the default `Linearization`, by field.
        f1_every: Parse the validation trees at every Nth validation; 0 never does.
        f1_beam_size: Number of beams of these parses; 1 is greedy and fast.
        f1_trees: Parse N of the validation trees, drawn at random once; None for all of them.
    """

    linearization: Changes = Field(default_factory=dict)
    f1_every: Annotated[CountOrZero, MAY_CHANGE] = 1
    f1_beam_size: Annotated[Count, MAY_CHANGE] = 1
    f1_trees: Annotated[Count | None, MAY_CHANGE] = None

    def __post_init__(self):
        linearization = Linearization.from_dict(self.linearization)
        object.__setattr__(self, "linearization", linearization.to_dict())
