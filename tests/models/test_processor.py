"""The cores that a process may use."""

import os

import pytest

from keras_transformer.models import processor


@pytest.mark.parametrize("quota, cores", [
    ("200000 100000", 2), ("250000 100000", 3), ("50000 100000", 1), ("9900000 100000", 64),
    ("max 100000", 64), (None, 64),
])  # fmt: skip
def test_a_container_may_have_fewer_cores_than_its_machine(quota, cores, tmp_path, monkeypatch):
    monkeypatch.setattr(processor, "_QUOTA_FILE", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    if quota is not None:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert processor.num_cores() == cores
