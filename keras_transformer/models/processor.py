"""The cores and devices of this machine, and whether it multiplies fast in bfloat16."""

import contextlib
import functools
import os
import re
from pathlib import Path

import keras

_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")  # of a container


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # not on every system
        cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # no quota
        quota, period = map(int, _QUOTA_FILE.read_text().split())
        cores = min(cores, -(-quota // period))
    return cores


@functools.cache
def has_amx() -> bool:
    """Returns whether the processor multiplies bfloat16 matrices with AMX; False if unknown."""
    return "amx_bf16" in _processor()


def _processor():
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


def has_fast_bfloat16() -> bool:
    """Returns whether this machine is known to multiply faster in bfloat16 than in float32.

    NVIDIA's GPUs since Ampere do. On TensorFlow and torch, processors with AMX do, and AMD's with
    AVX512-BF16.
    """
    capability = _gpu_capability()
    if capability is not None:
        return capability >= (8, 0)
    backend = keras.backend.backend()
    has_onednn = backend == "torch" or os.environ.get("TF_ENABLE_ONEDNN_OPTS") != "0"
    # TensorFlow crashes in bfloat16 if ONEDNN_MAX_CPU_ISA hides the instructions.
    if backend == "jax" or not has_onednn or "ONEDNN_MAX_CPU_ISA" in os.environ:
        return False
    processor = _processor()
    return has_amx() or ("AuthenticAMD" in processor and "avx512_bf16" in processor)


def device_kind() -> str:
    """Returns the kind of device that the backend computes on, such as CPU, GPU or TPU."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.default_backend().upper()
    return "CPU" if _gpu_capability() is None else "GPU"


def _gpu_capability():
    """Returns the compute capability of the first GPU; None if there is none.

    GPUs of other makers than NVIDIA have `(0, 0)`.
    """
    if keras.backend.backend() == "torch":
        import torch

        return torch.cuda.get_device_capability() if torch.cuda.is_available() else None
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        details = map(
            tf.config.experimental.get_device_details, tf.config.get_visible_devices("GPU")
        )
        return next((each.get("compute_capability", (0, 0)) for each in details), None)
    import jax

    try:
        text = str(getattr(jax.devices("gpu")[0], "compute_capability", ""))
    except RuntimeError:  # There is none.
        return None
    return tuple(map(int, text.split("."))) if re.fullmatch(r"\d+\.\d+", text) else (0, 0)
