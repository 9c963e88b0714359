"""The paper's experiment from a data set of tensorflow-datasets to sacreBLEU, on a slice of WMT.

The set is written to disk as tensorflow-datasets writes `wmt14_translate`, with the same feature;
model and number of steps are tiny.
"""

import csv
import gzip
import html
import itertools
import json
import math
import os
import pathlib

import pytest

from keras_transformer.cli import main
from tests.translation_set import store_translation_set

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow_only("`train` reads its data with tf.data")]
NUM_TRAIN, NUM_VALID, NUM_TEST = 4_000, 60, 40
OVERRIDES = (
    "--num-encoder-layers 1 --num-decoder-layers 1 --d-model 32 --intermediate-dim 64 "
    "--num-heads 2 --vocab-size 2000 --tokens-per-batch 2048 --max-steps 60 --warmup-steps 30 "
    "--checkpoint-every 10 --evaluate-every 30"
).split()


@pytest.fixture(scope="module")
def wmt():
    root = os.environ.get("KERAS_TRANSFORMER_DATA")
    folder = pathlib.Path(root or "") / "wmt"
    if not root or not folder.is_dir():
        pytest.skip("needs a slice of WMT: set KERAS_TRANSFORMER_DATA to a folder that holds wmt/")
    return folder


def read(path, number):
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        lines = itertools.islice(file, number)
        return [html.unescape(line.removesuffix("\n")) for line in lines]


@pytest.fixture(scope="module")
def data_dir(wmt, tmp_path_factory):
    """A folder with `wmt14_translate/de-en` as it is after `download_and_prepare`."""
    parts = {
        "train": ("sample-train-10k.src.gz", "sample-train-10k.tgt.gz", NUM_TRAIN),
        "validation": ("newstest2013.eng.gz", "newstest2013.deu.gz", NUM_VALID),
        "test": ("newstest2014.eng.gz", "newstest2014.deu.gz", NUM_TEST),
    }
    splits = {
        split: (read(wmt / english, number), read(wmt / german, number))
        for split, (english, german, number) in parts.items()
    }
    return store_translation_set(tmp_path_factory.mktemp("tensorflow_datasets"), splits)


def test_the_base_experiment_from_vocabulary_to_bleu(wmt, data_dir, tmp_path, capfd):
    model = tmp_path / "model"
    data = ["--data-dir", str(data_dir)]
    arguments = ["--experiment", "wmt14-en-de-base", *data, *OVERRIDES]
    assert main(["train", *arguments, "--output", str(model)]) == 0
    capfd.readouterr()
    with open(model / "history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["30", "60"]
    losses = [float(row["valid_loss"]) for row in rows]
    # Better than guessing, and learning.
    assert math.log(2000) > losses[0] > losses[1]
    assert all(float(row["valid_bleu"]) >= 0 for row in rows)
    config = json.loads((model / "config.json").read_text())
    assert (config["model"]["d_model"], config["model"]["vocab_size"]) == (32, 2000)
    assert config["search"]["beam_size"] == 4
    assert len(list((model / "checkpoints").glob("step-*"))) == 5

    for language, name in (("en", "eng"), ("de", "deu")):
        lines = read(wmt / f"newstest2014.{name}.gz", NUM_TEST)
        (tmp_path / f"test.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    scores = tmp_path / "scores.json"
    evaluate = ["evaluate", "--model", str(model), "--target-language", "de", "--json", str(scores)]
    files = ["--source", f"{tmp_path}/test.en", "--reference", f"{tmp_path}/test.de"]
    assert main([*evaluate, *files]) == 0
    printed = capfd.readouterr().out
    assert "BLEU" in printed and "tok:13a" in printed
    of_files = json.loads(scores.read_text())
    assert of_files["num_lines"] == NUM_TEST
    data += ["--dataset", "wmt14_translate/de-en", "--source-language", "en"]
    assert main([*evaluate, *data]) == 0
    assert json.loads(scores.read_text())["scores"] == of_files["scores"]
