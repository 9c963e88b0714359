"""Every block of README.md and docs/*.md runs as printed, or says above it why not.

The blocks of a page run in order, in one folder, with the names of the blocks before. The folder
holds what a reader has: texts of their own, and trained models (tiny ones, so that it is fast).
"""

import doctest
import importlib.util
import io
import re
import shutil
import subprocess
import sys

import pytest

from keras_transformer.cli import main
from keras_transformer.cli.application import build_parser
from tests.bridges.published import learn_files, save_arrays
from tests.docs.page_blocks import PAGES, blocks_of, prompts_of
from tests.loaded_once import load_once
from tests.tiny_parser import tiny_parser
from tests.tiny_translator import sentence, tiny_translator
from tests.toy_treebank import write_toy_trees

# Modules that `pip install .` does not bring.
OPTIONAL = {"ai_edge_litert", "ctranslate2", "grpc", "jax", "keras_hub", "onnxruntime", "tf2onnx"}
OPTIONAL |= {"tensorflow_serving", "tensorflow_text", "torch", "transformers"}
# What makes a model takes long.
MODELS_ARE_MADE = re.compile(r"\btrain\(|\bTransformer\b")
WITH_BLOCKS = [page for page in PAGES if blocks_of(page)]
RUNNING = [page for page in WITH_BLOCKS if any(block.is_run for block in blocks_of(page))]
PARSER = build_parser()
MODELS = ["runs/en-de", "runs/seed-1", "runs/seed-2", "runs/quickstart", "runs/parser"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files that the pages name."""
    folder = tmp_path_factory.mktemp("reader")
    sizes = {"new": 3, "test": 3, "book": 3, "train": 120, "valid": 3, "all": 700}
    for name, size in sizes.items():
        lines = "".join(f"{sentence(3 + seed % 5, seed)}\n" for seed in range(size))
        for language in ("en", "de"):
            (folder / f"{name}.{language}").write_text(lines)
    (folder / "terms.tsv").write_text("dog\tVierbeiner\nbeach\tKüste\n", "utf-8")
    (folder / "test.words").write_text("the dog sees a cat .\n")
    write_toy_trees(folder / "test.trees", 3)
    for seed, name in zip((13, 1, 2, 13), MODELS, strict=False):
        tiny_translator(seed).save(folder / name)
    tiny_parser().save(folder / MODELS[-1])
    (folder / "downloads/opus-mt-en-de").mkdir(parents=True)
    learn_files(folder / "downloads/opus-mt-en-de")
    save_arrays(folder / "downloads/opus-mt-en-de")
    words = "prepare --source {0}/train.en --target {0}/train.de --valid-source {0}/valid.en "
    words += "--valid-target {0}/valid.de --vocab-size 320 --output {0}/data/en-de"
    assert main(words.format(folder).split()) == 0
    return folder


def missing_modules(code):
    imported = set(re.findall(r"^\s*(?:import|from) (\w+)", code, re.M)) & OPTIONAL
    return {name for name in imported if importlib.util.find_spec(name) is None}


def needs_of(words):
    """The missing modules that an export needs."""
    names = {"ctranslate2": "ctranslate2", "onnx": "tf2onnx", "litert": "ai_edge_litert"}
    names |= {"transformers": "safetensors"}
    if words[:2] != ["keras-transformer", "export"] or "--format" not in words:
        return set()
    return missing_modules(f"import {names[words[words.index('--format') + 1]]}")


@pytest.mark.slow
@pytest.mark.tensorflow_only("the pages export SavedModels")
@pytest.mark.parametrize("page", RUNNING)
def test_the_blocks_of_a_page_run(page, folder, tmp_path, monkeypatch):
    copy = shutil.copytree(folder, tmp_path / "reader")
    monkeypatch.chdir(copy)
    load_once(monkeypatch, *MODELS)
    # What `echo ... |` hands on.
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"The dog barks .\n")))
    names, missing = {}, set()
    for number, block in enumerate(block for block in blocks_of(page) if block.is_run):
        if block.language == "python":
            missing |= missing_modules(block.code)
            if not missing:
                exec(compile(block.code, f"{page}, block {number}", "exec"), names)
            continue
        for words in block.commands():
            missing |= needs_of(words)
            if words[0] == "keras-transformer" and not missing:
                assert main(words[1:]) == 0, (page, words)
    if missing:
        pytest.skip(f"the rest of {page} needs {', '.join(sorted(missing))}")


@pytest.mark.parametrize("with_models", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("page", [page for page in PAGES if prompts_of(page)])
def test_the_examples_with_a_prompt_print_what_they_say(page, with_models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = [x for x in prompts_of(page) if with_models or not MODELS_ARE_MADE.search(x)]
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page, page, 0)
    output = []
    results = doctest.DocTestRunner().run(test, out=output.append)
    assert results.attempted and not results.failed, "".join(output)


@pytest.mark.parametrize("page", WITH_BLOCKS)
def test_every_block_of_a_page_is_understood(page):
    """Blocks that are not run as well: Python compiles, bash parses, and options exist."""
    for block in blocks_of(page):
        if block.language == "python":
            compile(block.code, page, "exec")
            continue
        subprocess.run(["bash", "-n"], input=block.code, text=True, check=True)
        for words in block.commands():
            if words[0] == "keras-transformer":
                assert PARSER.parse_args(words[1:]).run
