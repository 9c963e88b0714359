"""Loading Keras with its backend, quietly."""

import contextlib
import os

from keras_transformer.cli.start_up import hidden_standard_error


def load_backend() -> None:
    """Imports Keras with its backend, without the backend's own lines on standard error.

    Commands call this after they have checked their arguments and before they import anything that
    computes.
    """
    with hidden_standard_error():
        import keras

        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            tf.config.list_physical_devices()  # looks for GPUs, and complains where there is none


def load_backend_in_streams(num_streams: int | None) -> int:
    """Does what `load_backend` does, and shares the cores of a CPU among streams.

    With TensorFlow an operation gets the cores of one stream: of many small operations most time
    goes into waking threads, so that one thread for each does more work than all for one.

    Args:
        num_streams: batches that will be searched at the same time; None to choose.

    Returns:
        The number of streams.
    """
    load_backend()
    import keras

    if keras.backend.backend() != "tensorflow":
        return num_streams or 1
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        return num_streams or 1
    cores = _count_cores()
    num_streams = num_streams or cores
    # TensorFlow's own setting wins; and once something is computed nothing can be set.
    if "TF_NUM_INTRAOP_THREADS" not in os.environ:
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(max(1, cores // num_streams))
    return num_streams


def _count_cores() -> int:
    # What the process may use, where the system tells that.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
