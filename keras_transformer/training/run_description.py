"""Description of a training run before its first step, in lines for people."""

import keras

from keras_transformer.training.distribution import num_replicas


def describe_run(model, data, settings, loop) -> list[str]:
    """Describes the model, the device and the plan of a run.

    Args:
        model: `Transformer`.
        data: `TrainingData`.
        settings: `TrainingSettings`.
        loop: `EvaluationLoop`, which knows when the run ends.

    Returns:
        Two lines.
    """
    config, steps = model.config, loop.total_steps
    layers = f"{config.num_encoder_layers} + {config.num_decoder_layers} layers"
    plan = f"Training until step {steps:,} ({steps / data.steps_per_epoch:.1f} epochs)"
    if settings.max_minutes is not None:
        plan += f", or for {settings.max_minutes:g} minutes in all"
    plan += f"; validation every {loop.evaluate_every:,} steps"
    if settings.patience is not None:
        plan += f", and an end after {settings.patience} of them without gain"
    return [
        f"Model {settings.preset}: {layers}, d_model {config.d_model:,}, "
        f"{model.count_params():,} parameters, on {_devices(model)}.",
        f"{plan}. The first step takes longer than the others.",
    ]


def _devices(model) -> str:
    kind, count = "CPU", num_replicas(model)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        kind = "GPU" if tf.config.list_physical_devices("GPU") else kind
    return f"{count} {kind}s" if count > 1 else f"one {kind}" if kind == "GPU" else "the CPU"
