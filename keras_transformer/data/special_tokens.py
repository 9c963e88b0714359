"""The reserved ids, the same in every vocabulary of this library."""

PAD_ID = 0
UNK_ID = 1
BOS_ID = 2
EOS_ID = 3

# Piece texts in id order, as sentencepiece prints them.
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")
