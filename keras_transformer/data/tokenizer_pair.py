"""The tokenizers of the source and of the target language."""

import dataclasses
import os
import pathlib

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.tokenizers import (
    load_tokenizer,
    other_kind_files,
    save_tokenizer,
    tokenizer_files,
)

_SHARED_NAME = "tokenizer"
_NAMES = ("source_tokenizer", "target_tokenizer")


@dataclasses.dataclass(frozen=True)
class TokenizerPair:
    """The tokenizers of a model: one for each language, or one that both languages share.

    Args:
        source: tokenizer of the source.
        target: tokenizer of the target; None if both languages share `source`.
    """

    source: Tokenizer
    target: Tokenizer | None = None

    @property
    def is_shared(self) -> bool:
        """Whether both languages share one tokenizer."""
        return self.target is None

    @property
    def of_target(self) -> Tokenizer:
        """The tokenizer that the target uses, shared or not."""
        return self.source if self.target is None else self.target

    @property
    def sizes(self) -> tuple[int, int | None]:
        """The vocabulary sizes of source and target; the second is None if they are shared."""
        return self.source.vocab_size, None if self.target is None else self.target.vocab_size

    def save(self, directory: str | os.PathLike) -> list[pathlib.Path]:
        """Writes `tokenizer.*`, or both `source_tokenizer.*` and `target_tokenizer.*`."""
        return [save_tokenizer(one, directory, name) for name, one in self._by_name().items()]

    @classmethod
    def load(cls, directory: str | os.PathLike, is_shared: bool = True) -> "TokenizerPair":
        """Reads what `save` wrote.

        Args:
            directory: folder.
            is_shared: whether both languages share one tokenizer.

        Raises:
            UserError: if a file is missing or damaged.
        """
        names = (_SHARED_NAME,) if is_shared else _NAMES
        return cls(*(load_tokenizer(directory, name) for name in names))

    def obsolete_files(self, directory: str | os.PathLike) -> list[pathlib.Path]:
        """Returns the tokenizer files of a folder that `save` into it would not replace.

        Raises:
            UserError: if a file has the name of a tokenizer that is read but is not a tokenizer.
        """
        ours, found = self._by_name(), []
        for name in (_SHARED_NAME, *_NAMES):
            if name in ours:
                found += other_kind_files(ours[name], directory, name)
            else:  # Nothing reads it with the new tokenizers: another kind of file may stay.
                found += tokenizer_files(directory, name)
        return found

    def _by_name(self) -> dict[str, Tokenizer]:
        if self.target is None:
            return {_SHARED_NAME: self.source}
        return dict(zip(_NAMES, (self.source, self.target), strict=True))
