"""Small random translators that exports are tested with, and how a runtime is driven."""

import numpy as np
import pytest
import sentencepiece

from keras_transformer.decoding import GreedySearch
from keras_transformer.errors import UserError
from keras_transformer.inference.translator import Translator
from tests.tiny_translator import sentence, tiny_model, tiny_tokenizer

# What a runtime could get wrong: where the norms stand, biases, positions, activation, epsilon.
CONFIGS = [
    {},
    {"norm": "pre", "use_bias": True, "num_encoder_layers": 2},
    {"position": "learned", "max_length": 64, "activation": "gelu"},
    {"num_decoder_layers": 2, "activation": "silu", "norm_epsilon": 1e-2},
]
# In the default run of the tests the first alone.
SLOW_CONFIGS = [pytest.param(config, marks=pytest.mark.slow) for config in CONFIGS[1:]]
# What `encode` and `decode` support besides: the second has loops, which are left out.
OF_STEPS = [
    pytest.param({"key_dim": 4}, marks=pytest.mark.slow),
    {"remat": True, "flash_attention": True},
    *(
        pytest.param({"position": position, "key_dim": 6, "value_dim": 10}, marks=pytest.mark.slow)
        for position in ("rotary", "relative")
    ),
]
TEXTS = [sentence(1 + seed % 9, seed) for seed in range(20)]
BOS_ID, EOS_ID = 2, 3


def random_translator(**config):
    """A greedy translator of `tiny_model`, with biases and norms that are not 0 and 1 either."""
    model = tiny_model(**config)
    generator = np.random.default_rng(7)
    for weight in model.trainable_weights:
        if len(weight.shape) == 1:
            weight.assign(weight + generator.normal(0.0, 0.1, weight.shape))
    return Translator(model, tiny_tokenizer(), search=GreedySearch(), extra_length=12)


def step_logits(runtime, source, target):
    """The logits `[rows, length, vocabulary]` of given targets, decoded token by token."""
    encoded = runtime.encode(source=source)
    caches = runtime.empty_caches(rows=len(target))
    logits = []
    for tokens in target.T:
        outputs = runtime.decode(tokens=tokens, **encoded, **caches)
        caches = {name: outputs[f"new_{name}"] for name in caches}
        logits.append(outputs["logits"])
    return np.stack(logits, axis=1)


def check_logits(runtime, translator):
    """Cached steps of a runtime give the logits of the whole model, padding and beams included."""
    generator = np.random.default_rng(3)
    source = generator.integers(4, 320, (2, 7)).astype("int32")
    source[0, -1] = source[1, 3] = EOS_ID
    source[1, 4:] = 0
    target = generator.integers(4, 320, (4, 6)).astype("int32")  # two rows for each source
    target[:, 0] = BOS_ID
    expected = translator.model({"source": np.repeat(source, 2, axis=0), "target": target})
    np.testing.assert_allclose(step_logits(runtime, source, target), expected, atol=1e-4)


def check_refused_window(export, path):
    with pytest.raises(UserError, match="no sliding window; .* Received: sliding_window=3"):
        export(random_translator(sliding_window=3), path / "m")
    assert not list(path.iterdir())


def greedy_answers(runtime, directory, translator):
    """Translates `TEXTS` in one padded batch, with the exported folder's tokenizer."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
    ids = processor.encode(TEXTS)
    limits = np.array(translator.max_lengths(np.array([len(row) for row in ids])))
    source = np.zeros((len(ids), max(map(len, ids)) + 1), "int32")
    for row, sentence_ids in zip(source, ids, strict=True):
        row[: len(sentence_ids) + 1] = [*sentence_ids, EOS_ID]

    encoded = runtime.encode(source=source)
    caches = runtime.empty_caches(rows=len(source))
    tokens = np.full(len(source), BOS_ID, "int32")
    answers = [[] for _ in ids]
    for length in range(1, max(limits) + 1):
        outputs = runtime.decode(tokens=tokens, **encoded, **caches)
        caches = {name: outputs[f"new_{name}"] for name in caches}
        tokens = outputs["logits"].argmax(-1).astype("int32")
        for answer, token, limit in zip(answers, tokens.tolist(), limits, strict=True):
            if length <= limit and EOS_ID not in answer:
                answer.append(token)
    return [processor.decode([id for id in answer if id != EOS_ID]) for answer in answers]
