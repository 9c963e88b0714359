"""Codes of languages: those of a model's pieces, and the codes of ISO 639 that mean the same."""

import collections
import difflib
from collections.abc import Sequence

from langcodes import Language, closest_match

# Names of the languages in requests and signatures, where `""` stands for the model's own.
LANGUAGES = ("source_language", "target_language")
# The largest distances of langcodes between two codes of one language, and of similar ones.
_LARGEST_DISTANCE, _LARGEST_OF_SIMILAR = 5, 60


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


def nearest_code(code: str, known: Sequence[str]) -> str | None:
    """Returns the known code that is most like an unknown one, for a message; None without one.

    Args:
        code, known: The unknown code, and the known ones.

    Example:

    >>> from keras_transformer.data.languages import nearest_code
    >>> nearest_code("pt-BR", ["eng_Latn", "por_Latn"])
    'por_Latn'
    """
    try:
        nearest, _ = closest_match(code, [*known], max_distance=_LARGEST_OF_SIMILAR)
    except ValueError:  # It is no code of a language, or one of the known ones is none.
        nearest = ""
    if nearest in known:
        return nearest
    lower = [name.lower() for name in known]
    similar = difflib.get_close_matches(code.lower(), lower, n=1)
    return known[lower.index(similar[0])] if similar else None
