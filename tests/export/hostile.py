"""Hostile texts, as bytes: what no one types but what a server is sent."""

import numpy as np

# Control characters, writing from right to left, combining marks, signs of several code points.
_PARTS = [chr(code).encode() for code in (*range(32), *range(127, 160), 0x2028, 0x200B, 0xFEFF)]
_SIGNS = "אבג ابت \u202e \u2066 \u0301 \u0323 \u0300 😀 👨\u200d👩\u200d👧 \U0010ffff ﷺ ß ½ ▁ "
_SIGNS += "</s> <pad> <0x0A> %s%n {}"
_PARTS += [part.encode() for part in [*_SIGNS.split(), "a", "red", "house", "the", "  "]]
_BROKEN = [b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"]  # as UTF-8


def hostile_texts(count, seed=0):
    """Texts of such parts and of any bytes, a few of them 100 kB long; the same for a seed."""
    generator = np.random.default_rng(seed)
    texts = []
    for number in range(count):
        parts = np.array(_PARTS + _BROKEN * (number % 4 == 1), object)
        text = b"".join(generator.choice(parts, int(generator.integers(0, 40))))
        if number % 8 == 2:
            text = generator.bytes(int(generator.integers(0, 200)))
        texts.append(text if number % 200 else ((text or b" ") * 100_000)[:100_000])
    return texts
