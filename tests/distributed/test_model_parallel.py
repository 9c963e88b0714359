"""On JAX, each of two devices holds half of a matrix; `test_several_processes.py` trains so."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, keras
from keras_transformer.models import Transformer, TransformerConfig
from keras_transformer.training import make_distribution

keras.distribution.set_distribution(make_distribution(2, model_parallel=2))
config = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 16, "intermediate_dim": 32}
model = Transformer(TransformerConfig(vocab_size=20, num_heads=2, use_bias=True, **config))
optimizer = keras.optimizers.Adam()
optimizer.build(model.trainable_variables)
print(json.dumps({
    variable.path: variable.value.addressable_shards[0].data.size / variable.value.size
    for variable in [*model.trainable_variables, *optimizer.variables]
}))
"""


@pytest.mark.slow
def test_each_device_holds_half_of_every_matrix_and_of_its_moments():
    pytest.importorskip("jax", reason="needs jax: pip install '.[jax]'")
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "PYTHONPATH": str(ROOT)}
    environment = {**os.environ, **flags, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    output = subprocess.check_output([sys.executable, "-c", PROGRAM], env=environment, text=True)
    shares = json.loads(output.splitlines()[-1])
    assert len(shares) > 60
    for path, share in shares.items():
        is_cut = re.search("kernel|embeddings|(query|key|value|inner)[/_]bias", path)
        assert share == (0.5 if is_cut else 1), path
