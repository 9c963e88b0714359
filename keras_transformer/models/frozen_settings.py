"""What frozen settings share: going to and from a dict, with unknown keys refused."""

import dataclasses


class FrozenSettings:
    """Mixin of frozen dataclasses that are saved as JSON."""

    def to_dict(self):
        """Return the fields as a dict that JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values):
        """Return the settings that `to_dict` gave.

        Args:
            values: A dict of fields; those left out keep their defaults.

        Raises:
            ValueError: If a key is not a field, or a value is not allowed.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(values) - set(names))
        if unknown:
            raise ValueError(
                f"{cls.__name__} has no such setting; allowed are {', '.join(names)}. "
                f"Received: {', '.join(unknown)}"
            )
        return cls(**values)
