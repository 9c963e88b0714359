"""What the tests of the data package share."""

import gzip
import os
import pathlib

import pytest


@pytest.fixture(scope="session")
def multi30k():
    """The folder of the Multi30k corpus; the test is skipped where there is none."""
    root = os.environ.get("KERAS_TRANSFORMER_DATA")
    folder = pathlib.Path(root or "") / "multi30k"
    if not root or not folder.is_dir():
        pytest.skip("needs Multi30k: set KERAS_TRANSFORMER_DATA to a folder that holds multi30k/")
    return folder


@pytest.fixture(scope="session")
def multi30k_lines(multi30k):
    """The 58,000 English and German training lines, read with Python's own gzip."""
    lines = []
    for language in ("en", "de"):
        content = gzip.decompress((multi30k / f"train.{language}.gz").read_bytes())
        lines += content.decode().removesuffix("\n").split("\n")
    return lines


@pytest.fixture(scope="session")
def multi30k_tokenizer(multi30k_lines):
    from keras_transformer.data import train_sentencepiece

    return train_sentencepiece(multi30k_lines, 8000)


@pytest.fixture(scope="session")
def hostile_bytes():
    """Text that has broken tokenizers before."""
    return [
        *(b"", b" ", b"\n", b"a\0b", b"\0", b"\x01x\x7f"),
        b"  two  spaces\tand a tab ",
        "😀 grins, 👩‍👩‍👧‍👦 a family".encode(),
        "你好，世界".encode(),
        "no\u00a0break\u3000wide\u2028line\u0085next\x1cseparator".encode(),
        "e\u0301 composed, ﬁ ligature, ① circled, \ufeff mark".encode(),
        "<s> text that spells </s> <pad> <unk> ▁ @@ a@@ b ⁇".encode(),
        b"\xff\xfe broken \xc3 bytes \xe2\x82",
        b"\xed\xa0\x80 a surrogate, \xc0\x80 an overlong NUL",
        b"caf\xe9 in latin-1",
        ("word " * 400).encode(),
    ]
