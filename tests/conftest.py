"""Every test begins with the same seeds and Keras's own defaults.

The environment variable KERAS_BACKEND chooses the backend that the tests run on, and
KERAS_TRANSFORMER_TEST_SEED the seed: every test passes with any.
"""

import gc
import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# The processes of `-n` share the cores.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch and CTranslate2, which wait in busy loops
# oneDNN keeps what it compiles for every shape: 300 MB in each process of a whole run.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
if os.environ.get("KERAS_BACKEND") == "jax":
    # Compiling is what the tests spend their time on there.
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

_SEED = int(os.environ.get("KERAS_TRANSFORMER_TEST_SEED", "0"))
# Tests here start processes of their own. They run first, while this process is small.
_FIRST = ("tests", "distributed", "system", "docs", "cli", "export", "training", "translation")

# Keras is imported inside the functions: the process that hands out the tests needs none.


def pytest_collection_modifyitems(items):
    import keras

    items.sort(key=lambda item: item.path.parent.name not in _FIRST)
    if keras.backend.backend() == "tensorflow":
        return
    for item in items:
        marker = item.get_closest_marker("tensorflow_only")
        if marker is not None:
            reason = ": ".join(("needs the TensorFlow backend", *marker.args))
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish():
    _collect_garbage()


def _collect_garbage():
    gc.collect()
    # What is left stays: no later collection need look at it.
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _fresh_module():
    import keras

    keras.utils.set_random_seed(_SEED)
    yield
    keras.backend.clear_session(free_memory=False)
    _collect_garbage()


@pytest.fixture(autouse=True)
def _fresh_keras(monkeypatch):
    import keras

    with monkeypatch.context() as patch:
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            # It empties the cache of kernels, which every test would have to make again.
            patch.setattr(tf.random, "set_seed", lambda seed: None)
        keras.utils.set_random_seed(_SEED)
    policy, floatx = keras.config.dtype_policy(), keras.config.floatx()
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)


@pytest.fixture
def signatures_of(monkeypatch):
    """Called with names of signatures: only these are exported, which takes less time."""
    from keras_transformer.inference.tasks import get_task

    def keep(*names, task="translation"):
        functions = get_task(task).served_functions
        inputs = {name: functions.inputs[name] for name in names}
        monkeypatch.setattr(functions, "inputs", inputs)

    return keep


@pytest.fixture
def slow_bfloat16(monkeypatch):
    """On this machine `--precision auto` is float32, as in Python, whatever the processor."""
    from keras_transformer.models import processor

    monkeypatch.setattr(processor, "has_fast_bfloat16", lambda: False)
