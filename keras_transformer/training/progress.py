"""The progress of a training: the steps done, and whether any are left."""

import dataclasses
from collections.abc import Mapping

from keras_transformer.errors import UserError


@dataclasses.dataclass
class Progress:
    """The progress of a training; saved with its state."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    minutes: float = 0.0
    evaluations: int = 0
    unfinished_row: dict | None = None  # of the history: its evaluation was interrupted
    best_score: float | None = None
    best_step: int = 0
    best_loss: float | None = None
    without_gain: int = 0  # last evaluations that improved neither the loss nor the score

    @classmethod
    def from_dict(cls, state: Mapping) -> "Progress":
        """Returns the progress that was saved; old states name the best score after BLEU."""
        state = {name.replace("_bleu", "_score"): state[name] for name in state}
        state.pop("last_score", None)
        types = {field.name: field.type for field in dataclasses.fields(cls)}
        for name, value in state.items():
            if name not in types or not isinstance(value, types[name] | int):
                raise UserError(f"The training state is damaged. Received: {name}={value!r}")
        return cls(**state)

    def why_it_ends(self, total_steps: int, settings) -> str | None:
        """Returns why no step is left, and what would allow one; None if there are steps left."""
        limit, patience = settings.max_minutes, settings.patience
        if self.step >= total_steps:
            return f"all {total_steps:,} steps are done. Allow more steps to go on."
        if limit is not None and self.minutes >= limit:
            return f"{limit:g} minutes over all runs are used up. Allow more minutes to go on."
        if patience is not None and self.without_gain >= patience:
            return (
                f"neither loss nor score got better in {patience} validations. "
                "Raise the patience to go on."
            )
        return None
