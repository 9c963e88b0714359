"""Codes of languages: those of a model's pieces, and the codes of ISO 639 that mean the same."""

import collections
from collections.abc import Sequence

from langcodes import Language, closest_match

# Names of the languages in requests and signatures, where `""` stands for the model's own.
LANGUAGES = ("source_language", "target_language")
# The largest distance of langcodes between two codes of one language.
_LARGEST_DISTANCE = 5


def language_pieces(pieces: Sequence[str]) -> dict[str, str]:
    """Returns the piece of each code of a language.

    The codes are those of the pieces, such as `fr` for `__fr__`, `fra_Latn` and `fr_XX`; and the
    codes of ISO 639, with two and three letters, that clearly mean one of them.

    Args:
        pieces: Pieces of languages.

    Example:

    >>> from keras_transformer.data.languages import language_pieces
    >>> codes = language_pieces(["fra_Latn", "zho_Hans", "zho_Hant"])
    >>> codes["fra_Latn"], codes["fr"], codes["zh"]
    ('fra_Latn', 'fra_Latn', 'zho_Hans')
    """
    known = {piece.strip("_"): piece for piece in pieces}
    meanings: dict[str, list[str]] = collections.defaultdict(list)
    for code in known:
        try:
            language = Language.get(code).prefer_macrolanguage()
            names = {language.language or code, language.to_alpha3()}
        except (LookupError, ValueError):  # langcodes does not know the code.
            continue
        for name in names:
            meanings[name].append(code)
    for name, codes in meanings.items():
        # Of several scripts, such as zho_Hans and zho_Hant, the usual one is meant.
        nearest, _ = closest_match(name, codes, max_distance=_LARGEST_DISTANCE)
        code = codes[0] if len(codes) == 1 else nearest
        if code in known:
            known.setdefault(name, known[code])
    return known
