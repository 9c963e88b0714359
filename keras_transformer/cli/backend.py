"""Imports Keras and its backend quietly, and divides the cores of a CPU."""

import contextlib
import ctypes
import mmap
import os
import platform
import sys

# Default number of parts of a batch that `train` computes at the same time on a CPU.
TRAINING_STREAMS = 2
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # options of glibc's `mallopt`
_MAX_HEAP_GROWTH = 2**33  # bytes of address space


def load_backend(trains: bool = False) -> bool:
    """Imports Keras, finds the GPUs and returns whether the backend is TensorFlow on a CPU.

    A training has its batches from TensorFlow on every backend.
    """
    # Otherwise, threads of torch that wait keep the cores busy, which slows down all programs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if platform.machine() in ("x86_64", "AMD64"):
        # TensorFlow leaves oneDNN off without AVX-512-VNNI, where it is faster too.
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    with _hidden_standard_error():
        import keras

        backend = keras.backend.backend()
        if backend != "tensorflow":
            _keep_freed_memory()
        if backend == "jax" and trains:
            import jax

            if jax.process_count() > 1:  # Their connection prints messages.
                from jax.experimental import multihost_utils

                multihost_utils.sync_global_devices("connected")
        if backend == "tensorflow" or trains:
            import tensorflow as tf
        # TensorFlow prints messages if there is no GPU.
        return backend == "tensorflow" and not tf.config.list_physical_devices("GPU")


def _keep_freed_memory():
    """Lets the C library keep freed memory, in large pages if the system offers them.

    By default it returns freed memory to the system. A training step frees its tensors, and getting
    their memory back, in small pages, takes time on a CPU. This has an effect only before the
    backend starts its threads.
    """
    if sys.platform != "linux" or not hasattr(library := ctypes.CDLL(None), "mallopt"):  # no glibc
        return
    for option, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_ARENA_MAX, 1)):
        library.mallopt(option, value)
    # Grows the heap at once, to ask for large pages. They take no room before they are used.
    size = min(_MAX_HEAP_GROWTH, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.free.argtypes = [ctypes.c_void_p]
    if address := library.malloc(size):
        start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        library.madvise(start, address + size - start, mmap.MADV_HUGEPAGE)
        library.free(address)


@contextlib.contextmanager
def _hidden_standard_error():
    """Hides standard error, because TensorFlow has no setting that stops all of its messages."""
    if os.environ.get("KERAS_TRANSFORMER_DEBUG") == "1":
        yield
        return
    # TensorFlow reads this once, when it is imported; 3 shows only fatal errors.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        saved = os.dup(2)  # C++ writes to the file descriptor, not to `sys.stderr`
    except OSError:  # there is no standard error to hide
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


def load_backend_in_streams(
    num_streams: int | None, most: int | None = None, trains: bool = False
) -> int:
    """Calls `load_backend`, divides the cores of a CPU among streams, and returns their number.

    Small operations are faster with one thread than with several. The default is one stream for
    each core, at most `most`.
    """
    if not load_backend(trains):
        return num_streams or 1
    import tensorflow as tf

    from keras_transformer.models.processor import num_cores

    cores = num_cores()
    num_streams = num_streams or min(cores, most or cores)
    # TensorFlow's own setting has priority. The number cannot be set after the first computation.
    if "TF_NUM_INTRAOP_THREADS" not in os.environ:
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(max(1, cores // num_streams))
    return num_streams
