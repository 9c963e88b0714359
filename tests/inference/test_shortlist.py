"""Shortlist: IBM model 1 of the training text, the tokens of a batch, and searches among them."""

import collections

import numpy as np
import pytest
from keras import ops

from keras_transformer.data import EOS_ID, EncodedCorpus, SubwordTokenizer
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.decoding import BeamSearch, GreedySearch, MinimumLength
from keras_transformer.errors import UserError
from keras_transformer.inference import Shortlist, Translator
from keras_transformer.inference import shortlist as shortlist_module
from tests.closeness import assert_close
from tests.tiny_translator import tiny_model

VOCABULARY = [f"w{number}" for number in range(1400)]
PAIRS = [
    ("w1 w2", "w11 w12"),
    ("w1 w3 w4", "w11 w14 w13"),
    ("w2 w3", "w13 w12"),
    ("w5", "w12 w12"),
    ("w4 w2 w2", "w14 w12"),
]
TEXTS = ["w1 w2 w3", "w700 w701", "w4 w5 w1 w1 w2 w9", ""]


def _corpus(tokenizer):
    return EncodedCorpus.from_corpus(PAIRS, tokenizer)


@pytest.fixture(scope="module")
def translator():
    tokenizer = SubwordTokenizer(VOCABULARY)
    model = tiny_model(vocab_size=tokenizer.vocab_size)
    return Translator(model, tokenizer, search=GreedySearch(), extra_length=8)


@pytest.fixture
def with_shortlist(translator):
    """The translator with a shortlist of random candidates."""
    draw = np.random.default_rng(0).integers(4, len(VOCABULARY), (len(VOCABULARY) + 4, 12))
    learned = Shortlist.learn(_corpus(translator.source_tokenizer), translator.tokenizers)
    translator.shortlist = Shortlist(
        draw.astype("int32"), learned.frequent, len(VOCABULARY) + 4, learned.checksum
    )
    yield translator
    translator.shortlist = None


def _model_1(pairs, num_iterations):
    """p(target | source) of Brown et al. (1993), word by word; None is the empty word."""
    pairs = [([*source.split(), None], target.split()) for source, target in pairs]
    together = {(s, t) for source, target in pairs for s in source for t in target}
    found = dict.fromkeys(together, 1.0)
    for _ in range(num_iterations):
        counts, totals = collections.Counter(), collections.Counter()
        for source, target in pairs:
            for t in target:
                norm = sum(found[s, t] for s in source)
                for s in source:
                    counts[s, t] += found[s, t] / norm
                    totals[s] += found[s, t] / norm
        found = {(s, t): counts[s, t] / totals[s] for s, t in together}
    return found


@pytest.mark.parametrize("chunk", [7, 2**22])
def test_probabilities_are_those_of_ibm_model_1(chunk, monkeypatch):
    monkeypatch.setattr(shortlist_module, "_CHUNK", chunk)
    tokenizer = SubwordTokenizer(VOCABULARY)
    size = tokenizer.vocab_size
    found = shortlist_module._translations(_corpus(tokenizer), size, size)
    words = lambda ids: [None if one == EOS_ID else VOCABULARY[one - 4] for one in ids]  # noqa: E731
    keys = zip(words(found[0]), words(found[1]), strict=True)
    expected = _model_1(PAIRS, 5)
    assert dict(zip(keys, found[2], strict=True)) == pytest.approx(expected, rel=1e-9)


def test_candidates_are_the_most_probable_translations_and_the_token_itself():
    tokenizer = SubwordTokenizer(VOCABULARY)
    shortlist = Shortlist.learn(_corpus(tokenizer), TokenizerPair(tokenizer), 2, num_frequent=3)
    probabilities = _model_1(PAIRS, 5)
    for word in ("w1", "w2", "w3", "w4", "w5"):
        ranked = sorted((-p, t) for (s, t), p in probabilities.items() if s == word)[:2]
        [itself, *others] = tokenizer.pieces(shortlist.candidates[tokenizer.encode(word)[0]])
        assert itself == word and set(others) - {word} == {t for _, t in ranked}
    assert tokenizer.pieces(shortlist.frequent[4:]) == ["w12", "w11", "w13"]
    assert shortlist.frequent[:4].tolist() == [0, 1, 2, 3]


def test_token_ids_are_the_union_filled_up_with_the_lowest():
    candidates = np.zeros((9, 2), "int32")
    candidates[5], candidates[6] = (1000, 1001), (1001, 1002)
    shortlist = Shortlist(candidates, np.arange(4, dtype="int32"), 2000, checksum=0)
    ids = shortlist.token_ids([[5, 3], [6, 3]], prefixes=[[], [1500]])
    assert ids.tolist() == [*range(508), 1000, 1001, 1002, 1500]
    assert ids.dtype == np.int32
    candidates[7:9] = np.arange(600, 604).reshape(2, 2)
    wide = Shortlist(candidates, np.arange(600, dtype="int32"), 2000, checksum=0)
    assert len(wide.token_ids([[5]])) == 768
    assert Shortlist(candidates, np.arange(4), 511, checksum=0).token_ids([[1]]) is None
    everything = Shortlist(candidates, np.arange(600, dtype="int32"), 700, checksum=0)
    assert everything.token_ids([[1]]).tolist() == list(range(700))


@pytest.mark.parametrize("search", [BeamSearch(2, constraints=[MinimumLength(3)]), GreedySearch()])
def test_answers_are_those_of_a_search_among_these_tokens(search, with_shortlist, monkeypatch):
    """The search sees the whole vocabulary, and minus infinity at the tokens left out."""
    # Finished sentences leave the batch on the way.
    texts = TEXTS + [" ".join(f"w{9 * n + k}" for k in range(n % 7)) for n in range(8)]
    model, found = with_shortlist.model, with_shortlist.hypotheses(texts, search)
    sources = [with_shortlist.source_tokenizer.encode(text) for text in texts]
    listed = with_shortlist.shortlist.token_ids([[*ids, EOS_ID] for ids in sources])
    assert len(listed) == 512
    is_listed = np.isin(np.arange(model.config.vocab_size), listed)
    decode_step = type(model).decode_step

    def step(self, tokens, parents, state):
        logits, state = decode_step(self, tokens, parents, state)
        return ops.where(is_listed, logits, float("-inf")), state

    monkeypatch.setattr(type(model), "decode_step", step)
    expected = Translator(model, with_shortlist.source_tokenizer, extra_length=8)
    expected = expected.hypotheses(texts, search)
    tokens = [[answer.tokens for answer in row] for row in found]
    assert tokens == [[answer.tokens for answer in row] for row in expected]
    assert set(sum((list(one) for row in tokens for one in row), [])) <= set(listed)
    scores = [[answer.score for answer in row] for row in found]
    assert_close(sum(scores, []), [answer.score for row in expected for answer in row], scale=1.0)


def test_a_prefix_is_allowed_whatever_the_shortlist_says(with_shortlist):
    [answer] = with_shortlist.translate(["w1 w2"], prefixes=["w1399 w1398"])
    assert answer.startswith("w1399 w1398")


def test_a_file_is_read_back_or_refused_in_one_line(translator, tmp_path):
    tokenizers = translator.tokenizers
    with pytest.raises(UserError, match=r"shortlist.npz is missing; `keras-transformer shortlist`"):
        Shortlist.load(tmp_path, tokenizers)
    learned = Shortlist.learn(_corpus(tokenizers.source), tokenizers)
    path, read = learned.save(tmp_path), Shortlist.load(tmp_path, tokenizers)
    for name, value in vars(learned).items():
        np.testing.assert_array_equal(getattr(read, name), value)
    other = TokenizerPair(SubwordTokenizer(VOCABULARY[::-1]))
    with pytest.raises(UserError, match="learned with other vocabularies"):
        Shortlist.load(tmp_path, other)
    wrong = {**vars(learned), "candidates": np.full_like(learned.candidates, -1)}
    for damage in (
        lambda: np.savez_compressed(path, **wrong),
        lambda: path.write_bytes(path.read_bytes()[:500]),
    ):
        damage()
        with pytest.raises(UserError, match="shortlist is damaged"):
            Shortlist.load(tmp_path, tokenizers)


def test_long_sentences_do_not_fill_the_memory(monkeypatch):
    ids = np.full(20, 5, "uint16")
    corpus = EncodedCorpus(ids[:16], np.arange(0, 17, 4), ids, np.arange(0, 21, 5))
    for most, expected in ((10**6, 4 * 20), (40, 2 * 20), (1, 20)):
        monkeypatch.setattr(shortlist_module, "_MAX_CELLS", most)
        cells = sum(len(pairs) for pairs, _ in shortlist_module._cells(corpus, 10))
        assert cells == expected
