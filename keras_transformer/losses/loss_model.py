"""`LossModel`: projection to logits and cross-entropy together, in little memory."""

from typing import Any

import keras
from keras import ops

from keras_transformer.checks import check_boolean, checked_number
from keras_transformer.layers.tensors import Tensor, at_least_float32, check_shape, check_weights
from keras_transformer.losses.cross_entropy import (
    LabelSmoothedCrossEntropy,
    cross_entropy,
    r_drop_cross_entropy,
    squeezed,
    uniform_share,
)
from keras_transformer.models.micro_batches import MicroBatchModel, num_replicas, token_mean_weights

_BACKEND = keras.backend.backend()
if _BACKEND == "tensorflow":
    from keras_transformer.losses.fused_cross_entropy import fused_projected_cross_entropy
if _BACKEND == "jax":
    import jax

# Maximum size of the logits that exist at the same time. Small slices cost time, because each
# product prepares the embeddings again (on two cores, with 2,048 x 32,000 logits in bfloat16,
# slices of 128 MB are 5% slower than one slice).
LOGITS_BYTES = 512 * 2**20
# A GPU has the memory for larger slices on JAX, whose gradient computes all slices but one again.
_GPU_FACTOR = 8


@keras.saving.register_keras_serializable(package="keras_transformer")
class LossModel(MicroBatchModel):
    """A Transformer with its loss: `fit` computes no logits of a whole batch.

    Loss and gradient equal those of the `Transformer` with `LabelSmoothedCrossEntropy`, but logits
    are computed in slices of at most 512 MB, or 4 GB with JAX on a GPU. (XLA undoes the slices for
    JAX on a CPU.) On TensorFlow, padding positions are skipped, except under XLA, which computes
    all logits at once. The model also takes rows with several sentences, as from
    `TokenBatches(packed_width=...)`. Training this model trains the Transformer, whose weights it
    shares.

    Args:
        transformer: The `Transformer`.
        label_smoothing: Share in [0, 1) of the target that goes to the other ids.
        convention: "t2t", an equal share for each of the other ids, or "keras", for each id; see
            `LabelSmoothedCrossEntropy`.
        packed: Whether rows hold several sentences.
        r_drop: Alpha of R-Drop, 0 for none. Every training step computes each row twice, with
            different dropout. The loss of a token is half of equation (4): the mean of both
            cross-entropies, plus `alpha / 4` times the two divergences of the distributions.
        name: Name of the model.

    Call arguments:
        inputs: Dict of `"source"`, int32 `[batch, source_length]`, and `"target"`, int32
            `[batch, target_length]`; if `packed` also `"source_segments"` and `"target_segments"`,
            see `Transformer.decoder_states`. Id 0 is padding.

    Returns:
        The states that are projected to logits, `[batch, target_length, d_model]`; in training with
        R-Drop two rows for each row of ids.

    Example:

    >>> from keras_transformer.training import LossModel, compile_model
    >>> ids = np.array([[5, 6, 3]])
    >>> model = LossModel(keras_transformer.Transformer.from_preset("tiny", vocab_size=100))
    >>> model = compile_model(model, keras_transformer.TrainingRecipe())
    >>> loss = model.train_on_batch({"source": ids, "target": ids}, ids)

    Reference: Vaswani et al. (2017), sections 3.4 and 5.4; packing as in T5 (Raffel et al., 2020,
    section 3.1.2), with attention within segments only; R-Drop, Liang et al. (2021).
    """

    def __init__(
        self,
        transformer: keras.Model,
        label_smoothing: float = 0.1,
        convention: str = "t2t",
        packed: bool = False,
        r_drop: float = 0.0,
        name: str = "loss_model",
    ):
        check_boolean("packed", packed)
        r_drop = checked_number("r_drop", r_drop, 0, 1e6)
        loss = LabelSmoothedCrossEntropy(label_smoothing, convention)
        names = ["source", "target"]
        if packed:
            names += ["source_segments", "target_segments"]
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
        ids = inputs.values()
        if r_drop:
            ids = map(_TwiceInTraining(), ids)
        super().__init__(inputs, transformer.decoder_states(*ids), name=name)
        self.transformer = transformer
        self.config = transformer.config
        # `compile` reads it to scale the loss of float16; a functional model does not set it.
        self.dtype_policy = transformer.dtype_policy
        self.label_smoothing = loss.label_smoothing
        self.convention = convention
        vocab_size = transformer.target_embedding.vocab_size
        self._smoothing = uniform_share(self.label_smoothing, vocab_size, convention)
        self.packed = packed
        self.r_drop = r_drop
        self._static_shapes = False

    def token_losses(self, states: Tensor, labels: Tensor, training: bool = False) -> Tensor:
        """Returns the loss of every token, 0 on padding.

        Args:
            states: `[batch, length, d_model]`, the output of this model; with R-Drop, training has
                two rows for each row of labels.
            labels: `[batch, length]`, ids in `[0, V)`.
            training: Whether the states are those of a training step.

        Returns:
            `[batch, length]`, in at least float32.
        """
        embedding, labels = self.transformer.target_embedding, ops.cast(labels, "int32")
        is_token = ops.not_equal(labels, embedding.padding_id)
        r_drop = self.r_drop if training else 0.0
        if r_drop:
            # [batch * 2, length, d_model] -> [batch, length, 2, d_model]
            (batch, length), width = ops.shape(labels), states.shape[-1]
            states = ops.transpose(ops.reshape(states, (batch, 2, length, width)), (0, 2, 1, 3))
        slice_bytes = LOGITS_BYTES // (2 if r_drop else 1)
        tokens_per_slice = max(1, slice_bytes // 4 // embedding.vocab_size)
        # A quantized matrix rounds the states too, so only `project` gives the model's logits. XLA
        # needs static shapes, so it computes all logits at once.
        is_quantized = embedding.embedding.quantization_mode is not None
        if _BACKEND != "tensorflow" or is_quantized or self._static_shapes:
            losses = self._reference_losses(states, labels, r_drop, tokens_per_slice)
            return ops.where(is_token, losses, 0.0)
        matrix, bias = embedding.output_weights()
        if bias is not None:  # It becomes a column of the matrix, for a state of one.
            states = ops.concatenate([states, ops.ones_like(states[..., :1])], axis=-1)
            matrix = ops.concatenate([matrix, ops.expand_dims(bias, 1)], axis=1)
        return fused_projected_cross_entropy(
            labels, states, matrix, self._smoothing, is_token, tokens_per_slice, r_drop, training
        )

    def _reference_losses(self, states, labels, r_drop, tokens_per_slice):
        """Returns `[batch, length]`, the losses of all positions, on every backend."""
        embedding, smoothing = self.transformer.target_embedding, self._smoothing
        if _BACKEND == "jax" and jax.default_backend() == "gpu":
            tokens_per_slice *= _GPU_FACTOR

        def slice_losses(states, labels):
            logits = embedding.project(states)
            logits = ops.cast(logits, at_least_float32(logits.dtype))
            if r_drop:
                return r_drop_cross_entropy(labels, logits, smoothing, r_drop)
            return cross_entropy(labels, logits, smoothing)

        # [batch, length, ...] -> [batch * length, ...]
        flat, flat_labels = ops.reshape(states, (-1, *states.shape[2:])), ops.reshape(labels, (-1,))
        if _BACKEND == "tensorflow" or flat.shape[0] <= tokens_per_slice:
            losses = slice_losses(flat, flat_labels)
        else:
            recomputed = keras.remat(slice_losses)  # The gradient computes the logits again.
            starts = range(0, flat.shape[0], tokens_per_slice)
            parts = [slice(start, start + tokens_per_slice) for start in starts]
            losses = ops.concatenate([recomputed(flat[part], flat_labels[part]) for part in parts])
        return ops.reshape(losses, ops.shape(labels))

    def compute_loss(
        self,
        x: Any = None,
        y: Tensor | None = None,
        y_pred: Any = None,
        sample_weight: Tensor | None = None,
        training: bool = True,
    ) -> Tensor:
        """Returns the weighted sum of the losses of the tokens, without weights their mean."""
        y, sample_weight = squeezed(y, 2), squeezed(sample_weight, 2)
        check_shape("y", y, "[batch, length]", None, y_pred.shape[1])
        losses = self.token_losses(y_pred, y, training)
        check_weights(sample_weight, losses)
        if sample_weight is None:
            sample_weight = token_mean_weights(y, losses.dtype)
        loss = ops.sum(losses * ops.cast(sample_weight, losses.dtype))
        # Keras adds up the losses of the replicas.
        return loss + sum(self.losses, 0.0) / num_replicas()

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: None = None,
        metrics: None = None,
        weighted_metrics: None = None,
        jit_compile: bool | None = None,
        **kwargs: Any,
    ) -> None:
        """Compiles like `keras.Model`, without a loss and metrics, which have no logits here.

        With `jit_compile=None`, steps are compiled with XLA on JAX alone.
        """
        if loss is not None or metrics or weighted_metrics:
            rule = "A `LossModel` has a loss of its own, and no logits for metrics: use "
            rule += "`evaluate_tokens` on its `transformer`"
            raise ValueError(f"{rule}. Received: {loss=}, {metrics=}, {weighted_metrics=}")
        if jit_compile is None:
            jit_compile = keras.backend.backend() == "jax" and not kwargs.get("run_eagerly")
        self._static_shapes = bool(jit_compile)
        super().compile(optimizer=optimizer, jit_compile=jit_compile, **kwargs)

    def compile_from_config(self, config: dict) -> None:
        # Keras needs this in a model that overrides `compile`. Version 1 wrote a loss.
        changes = {"loss": None}
        if keras.backend.backend() == "jax":
            changes["jit_compile"] = None
        self.compile(**keras.saving.deserialize_keras_object({**config, **changes}))
        self.optimizer.build(self.trainable_variables)

    def get_config(self) -> dict:
        names = "label_smoothing", "convention", "packed", "r_drop", "name"
        config = {name: getattr(self, name) for name in names}
        return {"transformer": keras.saving.serialize_keras_object(self.transformer), **config}

    @classmethod
    def from_config(cls, config: dict, custom_objects: dict | None = None) -> "LossModel":
        with keras.saving.custom_object_scope(custom_objects or {}):
            transformer = keras.saving.deserialize_keras_object(config["transformer"])
        return cls(**{**config, "transformer": transformer})


class _TwiceInTraining(keras.layers.Layer):
    """Repeats each row of ids in training: row 0, row 0, row 1, row 1, and so on."""

    def call(self, ids, training=False):
        return ops.repeat(ids, 2, axis=0) if training else ids

    def compute_output_spec(self, ids, training=False):
        return keras.KerasTensor(ids.shape, ids.dtype)
