"""Decoding with a cache equals the whole pass in half precision, with the kernels that users have.

Every position, score, window and cache, one position after the other and in chunks.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tensorflow_only("oneDNN is TensorFlow's; others compile for minutes"),
]

ROOT = pathlib.Path(__file__).parents[2]


def test_decoding_in_half_precision_equals_the_whole():
    done = subprocess.run(
        [sys.executable, "-m", "tests.layers.half_precision_decoding"],
        env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "1"},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    differences = json.loads(done.stdout.splitlines()[-1])
    assert len(differences) == 120
    # Four roundings of bfloat16; wrong kernels differ by half of the outputs and more.
    assert {name: value for name, value in differences.items() if not value < 2**-6} == {}
