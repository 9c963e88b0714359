"""A SavedModel under load: hostile text, many threads, many requests."""

import concurrent.futures
import contextlib
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.closeness import assert_close
from tests.export.hostile import hostile_texts
from tests.tiny_translator import sentence

# A process of its own: what the tests before have left in memory does not count.
REQUESTS = """
import json, pathlib, sys
import tensorflow as tf
import tensorflow_text

def resident():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20

loaded = tf.saved_model.load(sys.argv[1])
texts = json.load(open(sys.argv[2]))
sizes, num_requests = [], int(sys.argv[3])
for number in range(num_requests):
    # Batches of 1 to 4 texts, of all lengths, to every signature in turn.
    batch = tf.constant([texts[(number + 7 * row) % len(texts)] for row in range(1 + number % 4)])
    name = ("serving_default", "score", "attention", "n_best", "limits")[number % 5]
    inputs = {"translation": batch} if name in ("score", "attention") else {}
    loaded.signatures[name](text=batch, **inputs)
    if (number + 1) % (num_requests // 10) == 0:
        sizes.append(resident())
print(json.dumps(sizes))
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", [64, 10_000])
def test_hostile_texts(count, loaded, translator):
    """None fails, every answer is UTF-8, and that of valid text is the Translator's."""
    signatures = loaded.signatures
    texts, found = hostile_texts(count), []
    for start in range(0, count, 50):
        batch = tf.constant(texts[start : start + 50])
        outputs = signatures["serving_default"](text=batch)
        found += [text.decode("utf-8") for text in outputs["translation"].numpy()]
        pairs = {"text": batch, "translation": tf.reverse(batch, [0])}
        for values in (
            outputs["score"],
            signatures["score"](**pairs)["log_probability"],
            signatures["attention"](**pairs)["attention"],
        ):
            assert np.isfinite(values).all()
    valid = {}
    for number, text in enumerate(texts):
        with contextlib.suppress(UnicodeDecodeError):
            valid[number] = text.decode("utf-8")
    expected = translator.translate(valid.values(), batch_size=50, long_texts="truncate")
    assert [found[number] for number in valid] == expected


@pytest.mark.slow
@pytest.mark.parametrize("num_requests", [5, 200])
def test_threads_get_the_answers_of_one(num_requests, loaded):
    texts = [sentence(1 + number % 9, number) for number in range(40)]
    function = loaded.signatures["serving_default"]

    def answer(number):
        outputs = function(text=tf.constant([texts[number % 40], texts[number * 7 % 40]]))
        return outputs["translation"].numpy().tolist(), outputs["score"].numpy()

    def answers(thread):
        return [answer(thread + number) for number in range(num_requests)]

    alone = [answer(number) for number in range(40)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        together = list(pool.map(answers, range(16)))
    for thread, found in enumerate(together):
        for number, (translations, scores) in enumerate(found):
            expected_translations, expected_scores = alone[(thread + number) % 40]
            assert translations == expected_translations
            assert_close(scores, expected_scores, scale=1.0)


@pytest.mark.slow
def test_nothing_is_traced_again(loaded):
    """Neither shapes nor lengths make a new graph, also where the functions are called directly."""
    functions = {name: getattr(loaded, name) for name in loaded.signatures}
    before = {name: len(function.concrete_functions) for name, function in functions.items()}
    for count in (1, 3, 0, 6):
        texts = tf.constant([sentence(1 + 5 * row, row) for row in range(count)], tf.string)
        for name, function in functions.items():
            function(*[texts] * (2 if name in ("score", "attention") else 1))
    assert before == dict.fromkeys(functions, 1)
    assert {name: len(f.concrete_functions) for name, f in functions.items()} == before


@pytest.mark.parametrize("shape", [[2, 1], []], ids=str)
def test_texts_of_another_shape_are_refused_with_both_shapes(loaded, shape):
    for name, function in loaded.signatures.items():
        inputs = dict.fromkeys(function.structured_input_signature[1], tf.fill(shape, "a dog"))
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected shape \[\?\]"):
            function(**inputs)
            pytest.fail(name)


@pytest.mark.slow
def test_memory_does_not_grow(exported, tmp_path):
    if not pathlib.Path("/proc/self/statm").exists():
        pytest.skip("no /proc to read the size of a process from")
    texts = [sentence(1 + number % 23, number) for number in range(100)]
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    command = [sys.executable, "-c", REQUESTS, exported, tmp_path / "texts.json", "10000"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    sizes = json.loads(done.stdout.splitlines()[-1])  # MiB after each 1,000 requests
    # The allocator's pools fill up first; later requests must bring next to nothing.
    assert sizes[-1] - sizes[2] < 10, sizes
