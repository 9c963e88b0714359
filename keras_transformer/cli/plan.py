"""The plan of `train --plan`: the model, its memory, and the time of its training."""

import dataclasses
import math
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from keras_transformer.cli import settings as train_settings
from keras_transformer.cli.backend import load_backend
from keras_transformer.cli.prepare import load_vocabulary
from keras_transformer.cli.progress import ProgressBar
from keras_transformer.cli.task_commands import commands_of
from keras_transformer.errors import UserError
from keras_transformer.inference.tasks import get_task
from keras_transformer.settings.transformer_config import count_parameters

_GIGABYTE = 10**9
# Usable share of the free memory: estimates may be too small, and other programs need memory.
_USABLE = 0.8


def describe_plan(
    experiment: str | None, values: Mapping[str, Any], device_memory: float | None
) -> Iterator[tuple[str, str]]:
    """Yields the rows of a plan, (label, text); `device_memory` is in gigabytes."""
    vocabulary = load_vocabulary(values)
    load_backend()
    import keras

    from keras_transformer.data import PreparedCorpus
    from keras_transformer.data.tokenizer_pair import TokenizerPair
    from keras_transformer.inference.model_directory import read_config
    from keras_transformer.training.plan import make_config, make_recipe

    if values["prepared"]:
        prepared = PreparedCorpus.load(values["prepared"])
        tokenizers = TokenizerPair(prepared.source_tokenizer, prepared.target_tokenizer)
        max_length = values["max_length"] or prepared.max_length
        values = {**values, "vocab_size": tokenizers.sizes[0], "max_length": max_length}
        values["shared_vocabulary"] = tokenizers.is_shared
    task = get_task(values["task"])
    commands = commands_of(task)
    settings = task.check_settings(train_settings.training_settings(values))
    recipe = make_recipe(settings)
    size = settings.vocab_size if vocabulary is None else vocabulary.vocab_size
    if size is None:
        raise UserError("--plan needs --vocab-size N, because it does not read the text.")
    target_size, sides = commands.plan_vocabulary(settings, size, vocabulary)
    if values["prepared"]:
        target_size = tokenizers.sizes[1]
    if settings.start_from and not (vocabulary or values["prepared"]):
        start = read_config(settings.start_from)["model"]
        size, target_size = start.vocab_size, start.target_vocab_size
    config = make_config(settings, recipe, size, target_size)
    num_devices = settings.gpus or 1
    if settings.jit_compile and num_devices > 1 and keras.backend.backend() == "tensorflow":
        raise UserError(f"--jit-compile works on one device only. Received: --gpus {num_devices}")
    share = math.ceil(recipe.tokens_per_batch / num_devices)
    steps = settings.max_steps or recipe.max_steps
    if experiment:
        yield "experiment", f"{experiment}: {train_settings.describe_experiment(experiment)}"
    yield "data", commands.describe_data(values) or "not given yet"
    kind = "" if vocabulary or values["prepared"] else f"{settings.tokenizer} "
    sizes = f"{config.vocab_size:,}"
    if values["prepared"] and target_size not in (None, size):
        sizes += f" and {target_size:,}"
    yield "vocabulary", f"{sizes} {kind}pieces {sides}"
    yield from _run_rows(settings, recipe, config, steps)
    yield from _memory_rows(settings, recipe, config, share, device_memory)
    yield from _time_rows(settings, recipe, config, share, steps)


def _run_rows(settings, recipe, config, steps):
    from keras_transformer.training.estimates import SENTENCE, count_operations

    layers = f"{config.num_encoder_layers} + {config.num_decoder_layers} layers"
    sizes = f"d_model {config.d_model:,}, feed-forward {config.intermediate_dim:,}"
    name = settings.start_from or settings.preset
    yield "model", f"{name}: {layers}, {sizes}, {config.num_heads} heads"
    yield "parameters", f"{count_parameters(config):,}"
    limit = "" if settings.max_minutes is None else f", or {settings.max_minutes:g} minutes"
    yield "steps", f"{steps:,}{limit}"
    batch = f"{recipe.tokens_per_batch:,}"
    yield "batch", f"{batch} source + {batch} target tokens, padding included"
    windows = settings.average_windows or (recipe.average_checkpoints,)
    every = settings.checkpoint_every
    between = "one epoch" if every is None else f"{every:,} steps"
    final = f"average of the last {' or '.join(map(str, windows))} checkpoints, {between} apart"
    if windows == (1,):
        final = "the last checkpoint"
    if settings.select_best:
        final += ", or a single one that scores better on the validation set"
    yield "final weights", final
    tokens = recipe.tokens_per_batch * (2 if recipe.r_drop else 1)
    operations = steps * count_operations(config, tokens, SENTENCE)
    yield "operations", f"{operations:.1e} floating-point operations in matrix products"
    yield "search", f"beam {recipe.beam_size}, length penalty {recipe.length_penalty:g}"


def _memory_rows(settings, recipe, config, share, device_memory):
    from keras_transformer.training.estimates import estimate_memory, most_tokens

    num_devices, num_parts = settings.gpus or 1, settings.micro_batches
    tokens = math.ceil(share / num_parts)
    width = settings.packed_width or min(recipe.max_length, tokens)
    tokens = max(tokens, width)  # a batch has at least one row
    rows = "packed rows" if settings.packed_width else "sentences"

    how: dict[str, Any] = {
        "mixed_precision": settings.mixed_precision,
        "averages": recipe.ema_momentum is not None,
        "passes": 2 if recipe.r_drop else 1,
    }
    split = {"num_devices": num_devices, "micro_batches": num_parts}
    memory = estimate_memory(config, tokens, width, **split, **how)
    cut = "" if num_parts == 1 else f", in {num_parts} micro-batches of {tokens:,} + {tokens:,}"
    yield "devices", f"{num_devices}, each with {share:,} + {share:,} tokens of a batch{cut}"
    total = f"about {memory.total / _GIGABYTE:.2f} GB, an estimate, for {rows} of {width} tokens:"
    yield "memory per device", total
    for name in ("weights", "gradients", "moments", "activations", "logits"):
        label = "Adam's moments" if name == "moments" else name
        yield "", f"{getattr(memory, name) / _GIGABYTE:6.2f} GB  {label}"
    if device_memory is None:
        yield "fits", "use --device-memory GB to find out"
        return

    def most(num_devices, num_parts):
        split = {"num_devices": num_devices, "micro_batches": num_parts}
        return most_tokens(device_memory * _GIGABYTE, config, width, **split, **how)

    if most(num_devices, num_parts) >= tokens:
        yield "fits", f"yes, in {device_memory:g} GB"
        return
    # Options of `train` that make a step fit, with at least one sentence in a batch.
    ways = []
    if (fitting := most(num_devices, 2)) >= width:
        number = math.ceil(share / fitting)
        ways.append(f"--micro-batches {number}: the same step, one part after the other")
    if (fitting := most(2, num_parts)) >= width:
        number = math.ceil(recipe.tokens_per_batch / (fitting * num_parts))
        ways.append(f"--gpus {number}: the same step, on more devices")
    if (fitting := most(num_devices, num_parts)) >= width:
        number = fitting * num_devices * num_parts
        ways.append(f"--tokens-per-batch {number}: smaller steps, another training")
    yield "fits", f"no, not in {device_memory:g} GB" + ("; these would:" if ways else ":")
    yield from (("", f"  {way}") for way in ways)
    if not ways:
        fixed = f"weights, gradients and moments take {memory.fixed / _GIGABYTE:.2f} GB"
        yield "", f"{fixed}, and leave too little room for"
        yield "", f"{rows} of {width} tokens, in any number of micro-batches"


def _time_rows(settings, recipe, config, share, steps):
    from keras_transformer.models.processor import device_kind
    from keras_transformer.training.estimates import CPU_TOKENS, estimate_memory, measure_step

    measured, device, free = math.ceil(share / settings.micro_batches), device_kind(), None
    if device == "CPU":
        measured, free = min(measured, CPU_TOKENS), _free_memory()
    width = min(recipe.max_length, measured)
    if free is not None and estimate_memory(config, measured, width).total >= free:
        yield "time", "not measured: this machine has too little free memory for the model"
        return
    sys.stdout.flush()
    with ProgressBar("measuring", unit="steps") as progress:
        compute = (settings.mixed_precision, settings.jit_compile)
        seconds, tokens = measure_step(config, recipe, measured, *compute, progress.update)
        fixed = 0.0
        if recipe.optimizer == "muon" and tokens < share:
            # Muon's own products take the same time for any batch.
            adam = dataclasses.replace(recipe, optimizer="adam")
            others, _ = measure_step(config, adam, tokens, *compute, progress.update)
            fixed = max(seconds - others, 0.0)
    size = f"{tokens:,} + {tokens:,} tokens"
    yield "measured", f"{seconds:.2f} s a step of {size} on this machine's {device}"
    seconds = fixed + (seconds - fixed) * share / tokens
    if tokens < share:
        size = f"{share:,} + {share:,}"
        yield "", f"in proportion {seconds:.1f} s for {size}: a rough figure"
    devices, besides = "this device", "evaluations"
    if (settings.gpus or 1) > 1:
        devices = f"{settings.gpus} such devices"
        besides = "the exchange of gradients and evaluations"
    hours = seconds * steps / 3600
    duration = f"{hours:,.1f} hours" if hours >= 1 else f"{hours * 60:.1f} minutes"
    if hours >= 72:
        duration = f"{hours:,.0f} hours ({hours / 24:,.0f} days)"
    yield "time", f"{duration} for {steps:,} steps on {devices}"
    yield "", f"{besides} come on top"
    if settings.max_minutes is not None and settings.max_minutes < hours * 60:
        reached = int(settings.max_minutes * 60 / seconds)
        yield "", f"{settings.max_minutes:g} minutes are enough for about {reached:,} steps"


def _free_memory() -> float | None:
    """Returns the bytes that a step may use; None if they are unknown."""
    try:
        lines = pathlib.Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    available = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    return _USABLE * available[0] if available else None
