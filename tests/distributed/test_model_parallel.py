"""A model cut over two devices, on JAX, trains as on one, and each holds half of the matrices."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.closeness import assert_close

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_model_cut_in_two_trains_the_same_weights():
    pytest.importorskip("jax", reason="needs jax: pip install '.[jax]'")
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": str(ROOT),
    }
    process = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "model_parallel.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    measured = json.loads(process.stdout.splitlines()[-1])
    assert_close(*measured["losses"])
    assert_close(measured["weights"], 0.0, scale=1.0)
    for path, share in measured["shares"].items():
        is_cut = re.search("kernel|embeddings|(query|key|value|inner)[/_]bias", path)
        assert share == (0.5 if is_cut else 1), path
