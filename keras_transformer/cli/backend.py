"""Imports Keras and its backend for the commands, without the messages of TensorFlow."""

import contextlib
import os
import sys
from collections.abc import Iterator

# Default number of parts of a batch that `train` computes at the same time on a CPU.
TRAINING_STREAMS = 2


@contextlib.contextmanager
def _hidden_standard_error() -> Iterator[None]:
    """Hides standard error, because TensorFlow has no setting that stops all of its messages."""
    if os.environ.get("KERAS_TRANSFORMER_DEBUG") == "1":
        yield
        return
    # TensorFlow reads this once, when it is imported; 3 shows only fatal errors.
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
    """Imports Keras and finds the GPUs. Commands call it after their checks, before computing.

    Returns whether the backend is TensorFlow on a CPU.
    """
    with _hidden_standard_error():
        import keras

        if keras.backend.backend() != "tensorflow":
            return False
        import tensorflow as tf

        # Prints messages if there is no GPU.
        return not tf.config.list_physical_devices("GPU")


def load_backend_in_streams(num_streams: int | None, most: int | None = None) -> int:
    """Calls `load_backend`, divides the cores of a CPU among streams, and returns their number.

    Small operations are faster with one thread than with several. The default is one stream for
    each core, at most `most`.
    """
    if not load_backend():
        return num_streams or 1
    import tensorflow as tf

    # The number of cores that the process may use, if the system can tell.
    has_call = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_call else os.cpu_count() or 1
    num_streams = num_streams or min(cores, most or cores)
    # TensorFlow's own setting has priority. The number cannot be set after the first computation.
    if "TF_NUM_INTRAOP_THREADS" not in os.environ:
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(max(1, cores // num_streams))
    return num_streams
