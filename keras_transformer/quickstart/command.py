"""`keras-transformer quickstart`: all steps from data to a served model, in a few minutes."""

import argparse
import os
import pathlib
import subprocess
import sys
import time

from keras_transformer.cli.arguments import add_options
from keras_transformer.cli.backend import TRAINING_STREAMS, load_backend_in_streams
from keras_transformer.cli.progress import ProgressBar, say
from keras_transformer.cli.train import program, training_progress
from keras_transformer.errors import UserError
from keras_transformer.export import check_export_directory

_SIZES = {"num_train": 20_000, "num_valid": 200, "num_test": 500}
_LAYERS = {"num_encoder_layers": 2, "num_decoder_layers": 2}
_SETTINGS = {
    "preset": "tiny",
    "model": {**_LAYERS, "intermediate_dim": 512, "dropout": 0.05},
    "recipe": {
        "optimizer": "adam",
        "peak_learning_rate": 3e-3,
        "warmup_steps": 300,
        "tokens_per_batch": 2048,
        "max_steps": 800,
        "average_checkpoints": 5,
        "beam_size": 4,
        "length_penalty": 0.6,
    },
    "vocab_size": 1000,
    "evaluate_every": 100,
    "checkpoint_every": 50,
}
_NUM_SHOWN = 10
_SENTENCE = "It is a quarter to eight."

# A program that uses the export without this library and without Keras.
_FRESH_PROCESS = """
import sys
import tensorflow as tf
import tensorflow_text

model = tf.saved_model.load(sys.argv[1])
answer = model.signatures["serving_default"](text=tf.constant([sys.argv[2]]))
sys.stdout.buffer.write(answer["translation"][0].numpy())
"""


def quickstart_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `quickstart`."""
    text = "model directory and plots (default: %(default)s)"
    add_options(parser, {"--output DIR": text}, default="runs/quickstart")
    text = "folder of the SavedModel (default: %(default)s)"
    add_options(parser, {"--saved-model DIR": text}, default="saved_models/quickstart")
    text = "maximum minutes of training (default: %(default)s)"
    add_options(parser, {"--minutes M": text}, default=5.0)


def run_quickstart(arguments: argparse.Namespace) -> None:
    """Trains, evaluates and exports a model of the built-in corpus."""
    start = time.monotonic()
    output, saved_model = pathlib.Path(arguments.output), pathlib.Path(arguments.saved_model)
    check_export_directory(saved_model)  # It fails before the training, not after.
    if output.resolve().is_relative_to(saved_model.resolve()):
        rule = "--saved-model must be another folder than --output, and not one around it"
        raise UserError(f"{rule}. Received: --saved-model {saved_model} --output {output}")
    streams = load_backend_in_streams(None, TRAINING_STREAMS)
    import keras

    if (backend := keras.backend.backend()) != "tensorflow":
        rule = "The quickstart exports a SavedModel, which needs KERAS_BACKEND=tensorflow"
        raise UserError(f"{rule}. Received: {backend}")
    from keras_transformer.data import PairsCorpus
    from keras_transformer.export import export_saved_model
    from keras_transformer.quickstart.corpus import number_corpus
    from keras_transformer.training import TrainingSettings, train

    train_pairs, valid_pairs, test_pairs = number_corpus(**_SIZES)
    limits = {"max_minutes": arguments.minutes, "streams": streams}
    settings = TrainingSettings(**_SETTINGS, **limits)
    with training_progress(str(output), arguments.minutes) as progress:
        corpora = PairsCorpus(train_pairs), PairsCorpus(valid_pairs)
        result = train(output, *corpora, settings, report=say, progress=progress.update)
    translator = result.translator
    _evaluate(translator, test_pairs)
    _plot(translator, result.history, output)

    say(f"\nexporting to {arguments.saved_model} ...")
    export_saved_model(translator, arguments.saved_model)
    answer = _ask_in_fresh_process(arguments.saved_model, _SENTENCE)
    _print("A new process with TensorFlow alone loads it and translates:")
    _print(f"  {_SENTENCE}  ->  {answer}")
    minutes = (time.monotonic() - start) / 60
    _print(f"\nDone in {minutes:.1f} minutes. Try it yourself:")
    _print(f'  {program()} translate --model {arguments.output} "{_SENTENCE}"')
    _print(f"  {program()} serve {arguments.output}  # then open http://127.0.0.1:8501/")


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _evaluate(translator, pairs) -> None:
    from keras_transformer.evaluation import corpus_bleu, exact_match

    sources, references = map(list, zip(*pairs, strict=True))
    with ProgressBar("translating held-out pairs", unit="lines") as progress:
        hypotheses = translator.translate(sources, progress=progress.update)
    scores = translator.score(sources, references)
    loss = -sum(s.log_probability for s in scores) / sum(s.num_tokens for s in scores)
    bleu = corpus_bleu(hypotheses, references)
    match = exact_match(hypotheses, references)
    _print(f"\nOn {len(pairs)} held-out pairs, none of which was in training:")
    _print(f"  loss         {loss:7.4f}  nats per token")
    _print(f"  sacreBLEU    {bleu.score:7.2f}  {bleu.signature}")
    _print(f"  exact match  {match.score:7.2f}  %")
    _print("\nTen of them:")
    shown = zip(sources[:_NUM_SHOWN], hypotheses, references, strict=False)
    for source, hypothesis, reference in shown:
        _print(f"\n  source     {source}\n  output     {hypothesis}\n  reference  {reference}")


def _plot(translator, history, output: pathlib.Path) -> None:
    from keras_transformer import evaluation

    curve = evaluation.plot_learning_curve(history, output / "learning_curve.png")
    weights = evaluation.attention_weights(translator, _SENTENCE)
    attention = evaluation.plot_attention(
        *weights.view("cross", layer=len(weights.cross)),
        output / "attention.png",
        title="Last decoder block: attention of each output piece",
    )
    page = evaluation.attention_page(weights, output / "attention.html", title=_SENTENCE)
    _print(f"\nPlots: {curve}, {attention} and {page}")


def _ask_in_fresh_process(saved_model: str, sentence: str) -> str:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", _FRESH_PROCESS, saved_model, sentence]
    process = subprocess.run(command, env=environment, capture_output=True)
    if process.returncode:
        lines = process.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit status {process.returncode}"
        raise UserError(f"The exported model could not be used in a fresh process: {reason}")
    return process.stdout.decode("utf-8")
