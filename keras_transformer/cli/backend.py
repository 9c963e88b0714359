"""Imports of Keras and its backend, without the start-up lines of TensorFlow."""

import contextlib
import os
import sys
from collections.abc import Iterator

# Parts of a batch that `train` computes at the same time on a CPU, by default.
TRAINING_STREAMS = 2


def import_keras() -> None:
    """Imports Keras without the lines of its backend on standard error."""
    with _hidden_standard_error():
        import keras  # noqa: F401


@contextlib.contextmanager
def _hidden_standard_error() -> Iterator[None]:
    """Hides standard error, where TensorFlow writes lines that no setting of its own stops."""
    if os.environ.get("KERAS_TRANSFORMER_DEBUG") == "1":
        yield
        return
    # TensorFlow reads it once, when it is imported; 3 leaves fatal errors only.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        # C++ writes to the file descriptor, not to `sys.stderr`.
        saved = os.dup(2)
    except OSError:  # There is no standard error to hide.
        yield
        return
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def load_backend() -> bool:
    """Imports Keras and finds the GPUs: after a command's checks, before anything that computes.

    Returns whether TensorFlow computes, and on the CPU.
    """
    with _hidden_standard_error():
        import keras

        if keras.backend.backend() != "tensorflow":
            return False
        import tensorflow as tf

        # Complains where there is no GPU.
        return not tf.config.list_physical_devices("GPU")


def load_backend_in_streams(num_streams: int | None, most: int | None = None) -> int:
    """Calls `load_backend`, divides the cores of a CPU among streams and returns their number.

    Small operations are faster with one thread than with several. By default there is a stream for
    each core, up to the maximum `most`.
    """
    if not load_backend():
        return num_streams or 1
    import tensorflow as tf

    # The cores that the process may use, if the system has this call.
    has_call = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_call else os.cpu_count()
    num_streams = num_streams or min(cores, most or cores)
    # TensorFlow's own setting wins. After the first computation the number cannot be set.
    if "TF_NUM_INTRAOP_THREADS" not in os.environ:
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(max(1, cores // num_streams))
    return num_streams
