"""Hostile texts, as bytes: what no one types but what a server is sent."""

import unicodedata

import numpy as np

_CONTROL = [chr(code) for code in (*range(32), *range(127, 160), 0x2028, 0x2029, 0xFEFF, 0x200B)]
_RIGHT_TO_LEFT = [*"אבגדהוז ابتثجحخد ", "\u202e", "\u202d", "\u200f", "\u2066", "\u2069", "\u202c"]
_COMBINING = [chr(code) for code in range(0x300, 0x370) if unicodedata.combining(chr(code))]
_SIGNS = ["😀", "👨\u200d👩\u200d👧", "🇩🇪", "\U0010ffff", "\ufffe", "ﷺ", "ß", "ſ", "㍿", "½", "▁",
          "</s>", "<pad>", "<0x0A>", "%s%n", "\\u0000", "'; --", "{}", "$(id)"]  # fmt: skip
_BROKEN = [b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\xed\xb0\x80", b"\xf4\x90\x80\x80",
           b"\xe2\x82", b"\x80", b"\xf0\x9f\x98"]  # fmt: skip
_WORDS = ["a", "red", "house", "door", "  ", "\t", "the"]


def hostile_texts(count, seed=0):
    """Texts of all kinds in turn, a few of them 100 kB long; the same for the same seed."""
    generator = np.random.default_rng(seed)

    def some(choices, most=40):
        return generator.choice(np.array(choices, object), int(generator.integers(0, most)))

    def text_of_kind(kind):
        if kind == 0:
            return "".join(some(_CONTROL + _WORDS)).encode()
        if kind == 1:
            return b"".join(some(_BROKEN + [word.encode() for word in _WORDS]))
        if kind == 2:
            return "".join(some(_RIGHT_TO_LEFT)).encode()
        if kind == 3:
            return ("a" + "".join(some(_COMBINING, most=300))).encode()
        if kind == 4:
            return "".join(some(_SIGNS + _WORDS)).encode()
        if kind == 5:  # any code points, surrogates too
            points = generator.integers(0, 0x110000, int(generator.integers(0, 60)))
            return "".join(map(chr, points)).encode("utf-8", "surrogatepass")
        if kind == 6:
            return generator.bytes(int(generator.integers(0, 200)))
        return b"\x00" * int(generator.integers(0, 50)) + "".join(some(_WORDS)).encode()

    texts = [text_of_kind(number % 8) for number in range(count)]
    for number in range(0, count, 200):
        unit = texts[number + number // 200 % 8] or b" "
        texts[number] = (unit * (100_000 // len(unit) + 1))[:100_000]
    return texts
