"""Every script in examples/ explains itself with `--help`, and does nothing else then."""

import os
import runpy
import sys

import pytest

from tests.docs.page_blocks import ROOT

pytest.importorskip("tensorflow")
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_help(script, monkeypatch, capsys):
    for library in ("jax", "apache_beam"):
        if f"import {library}" in script.read_text("utf-8"):
            pytest.importorskip(library)
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    # A script may choose its backend; the environment comes back after the test.
    monkeypatch.setenv("KERAS_BACKEND", os.environ.get("KERAS_BACKEND", "tensorflow"))
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(script), run_name="__main__")
    assert stop.value.code == 0
    summary = script.read_text("utf-8").splitlines()[0].strip('"')
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith(f"usage: {script.name}") and summary in shown
