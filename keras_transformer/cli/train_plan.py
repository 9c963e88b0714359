"""`keras-transformer train --plan`: estimates the memory and the time of a training."""

import math
import sys
from collections.abc import Mapping
from typing import Any

from keras_transformer.cli.backend import load_backend
from keras_transformer.cli.progress import Progress
from keras_transformer.cli.settings import describe_experiment, training_settings
from keras_transformer.cli.vocab import load_vocabulary
from keras_transformer.errors import UserError
from keras_transformer.inference.tasks import get_task
from keras_transformer.settings.transformer_config import count_parameters

_GIGABYTE = 10**9
_LABEL_WIDTH = 20


def print_plan(
    experiment: str | None, values: Mapping[str, Any], device_memory: float | None
) -> None:
    """Prints the model, the steps, the memory and the time; `device_memory` is in gigabytes."""
    vocabulary = load_vocabulary(values["vocabulary"])
    load_backend()
    import tensorflow as tf

    from keras_transformer.data import PreparedCorpus
    from keras_transformer.inference.batch_inference import free_memory
    from keras_transformer.training.training_plan import CPU_TOKENS, estimate_memory, measure_step
    from keras_transformer.training.training_run import make_config, make_recipe

    if values["prepared"]:
        prepared = PreparedCorpus.load(values["prepared"])
        is_shared = prepared.target_tokenizer is None
        size = prepared.source_tokenizer.vocab_size
        values = {**values, "vocab_size": size, "shared_vocabulary": is_shared}
    settings = training_settings(values)
    recipe = make_recipe(settings)
    size = settings.vocab_size if vocabulary is None else vocabulary.vocab_size
    if size is None:
        raise UserError("--plan needs --vocab-size N, because it does not read the text.")
    commands = get_task(settings.task)
    target_size, sides = commands.plan_vocabulary(settings, size, vocabulary)
    config = make_config(settings, recipe, size, target_size)
    num_devices = settings.gpus or 1
    share = math.ceil(recipe.tokens_per_batch / num_devices)
    part = math.ceil(share / settings.micro_batches)
    steps = settings.max_steps or recipe.max_steps

    if settings.jit_compile and num_devices > 1:
        raise UserError(f"--jit-compile works on one device only. Received: --gpus {num_devices}")
    if experiment:
        _line("experiment", f"{experiment}: {describe_experiment(experiment)}")
    _line("data", commands.describe_data(values) or "not given yet")
    _print_run(settings, recipe, config, sides, steps)
    _print_memory(config, recipe, settings, share, part, device_memory)
    is_gpu = bool(tf.config.list_physical_devices("GPU"))
    slice_tokens = part if is_gpu else min(part, CPU_TOKENS)
    width = min(recipe.max_length, slice_tokens)
    free = None if is_gpu else free_memory()
    if free is not None and estimate_memory(config, slice_tokens, width).total >= free:
        _line("time", "not measured: this machine has too little free memory for the model")
        return
    sys.stdout.flush()
    with Progress("measuring", unit="steps") as progress:
        compute = (settings.mixed_precision, settings.jit_compile)
        seconds, tokens = measure_step(config, recipe, slice_tokens, *compute, progress.update)
    size = f"{tokens:,} + {tokens:,} tokens"
    device = "GPU" if is_gpu else "CPU"
    _line("measured", f"{seconds:.2f} s a step of {size} on this machine's {device}")
    seconds = seconds * share / tokens
    if tokens < share:
        _line("", f"in proportion {seconds:.1f} s for {share:,} + {share:,}: a rough figure")
    _print_time(seconds, steps, settings)


def _line(label: str, text: str) -> None:
    sys.stdout.write(f"{label:<{_LABEL_WIDTH}}{text}\n")


def _print_run(settings, recipe, config, sides: str, steps: int) -> None:
    from keras_transformer.training.training_plan import SENTENCE, count_operations

    _line("vocabulary", f"{config.vocab_size:,} {settings.tokenizer} pieces {sides}")
    _line(
        "model",
        f"{settings.start_from or settings.preset}: {config.num_encoder_layers} + "
        f"{config.num_decoder_layers} layers, d_model {config.d_model:,}, "
        f"feed-forward {config.intermediate_dim:,}, {config.num_heads} heads",
    )
    _line("parameters", f"{count_parameters(config):,}")
    limit = "" if settings.max_minutes is None else f", or {settings.max_minutes:g} minutes"
    _line("steps", f"{steps:,}{limit}")
    batch = f"{recipe.tokens_per_batch:,}"
    _line("batch", f"{batch} source + {batch} target tokens, padding included")
    windows = settings.average_windows or (recipe.average_checkpoints,)
    numbers, every = " or ".join(map(str, windows)), settings.checkpoint_every
    between = "one epoch" if every is None else f"{every:,} steps"
    final = f"average of the last {numbers} checkpoints, {between} apart"
    if windows == (1,):
        final = "the last checkpoint"
    if settings.select_best:
        final += ", or a single one that scores better on the validation set"
    _line("final weights", final)
    operations = steps * count_operations(config, recipe.tokens_per_batch, SENTENCE)
    _line("operations", f"{operations:.1e} floating-point operations in matrix products")
    _line("search", f"beam {recipe.beam_size}, length penalty {recipe.length_penalty:g}")


def _print_memory(config, recipe, settings, share, tokens, device_memory: float | None) -> None:
    from keras_transformer.training.training_plan import estimate_memory, most_tokens

    num_devices, parts = settings.gpus or 1, settings.micro_batches
    width = settings.packed_width or min(recipe.max_length, tokens)
    tokens = max(tokens, width)  # a batch has at least one row
    rows = "sentences" if settings.packed_width is None else "packed rows"
    how = (settings.mixed_precision, num_devices, parts)
    averages = recipe.ema_momentum is not None
    memory = estimate_memory(config, tokens, width, *how, averages)
    cut = "" if parts == 1 else f", in {parts} micro-batches of {tokens:,} + {tokens:,}"
    _line("devices", f"{num_devices}, each with {share:,} + {share:,} tokens of a batch{cut}")
    total = f"about {memory.total / _GIGABYTE:.2f} GB, an estimate, for {rows} of {width} tokens:"
    _line("memory per device", total)
    for name in ("weights", "gradients", "moments", "activations", "logits"):
        label = {"moments": "Adam's moments"}.get(name, name)
        _line("", f"{getattr(memory, name) / _GIGABYTE:6.2f} GB  {label}")
    if device_memory is None:
        _line("fits", "use --device-memory GB to find out")
        return

    def most(*how) -> int:
        return most_tokens(device_memory * _GIGABYTE, config, width, *how, averages)

    if most(*how) >= tokens:
        _line("fits", f"yes, in {device_memory:g} GB")
        return
    # Options of `train` that make a step fit, with at least one sentence in a batch.
    ways = []
    if (part := most(settings.mixed_precision, num_devices, 2)) >= width:
        number = math.ceil(share / part)
        ways.append(f"--micro-batches {number}: the same step, one part after the other")
    if (part := most(settings.mixed_precision, 2, parts)) >= width:
        number = math.ceil(recipe.tokens_per_batch / (part * parts))
        ways.append(f"--gpus {number}: the same step, on more devices")
    if (part := most(*how)) >= width:
        number = part * num_devices * parts
        ways.append(f"--tokens-per-batch {number}: smaller steps, another training")
    _line("fits", f"no, not in {device_memory:g} GB" + ("; these would:" if ways else ":"))
    for way in ways:
        _line("", f"  {way}")
    if not ways:
        fixed = f"weights, gradients and moments take {memory.fixed / _GIGABYTE:.2f} GB"
        _line("", f"{fixed}, and leave too little room for")
        _line("", f"{rows} of {width} tokens, in any number of micro-batches")


def _print_time(seconds: float, steps: int, settings) -> None:
    hours = seconds * steps / 3600
    is_one = (settings.gpus or 1) == 1
    devices = "this device" if is_one else f"{settings.gpus} such devices"
    _line("time", f"{_hours(hours)} for {steps:,} steps on {devices}")
    _line("", f"{'' if is_one else 'the exchange of gradients and '}evaluations come on top")
    if settings.max_minutes is not None and settings.max_minutes < hours * 60:
        reached = int(settings.max_minutes * 60 / seconds)
        _line("", f"{settings.max_minutes:g} minutes are enough for about {reached:,} steps")


def _hours(hours: float) -> str:
    if hours < 1:
        return f"{hours * 60:.1f} minutes"
    return f"{hours:,.1f} hours" if hours < 72 else f"{hours:,.0f} hours ({hours / 24:,.0f} days)"
