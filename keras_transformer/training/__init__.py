"""Loss, schedule, metrics, averaging, checkpoints and the `train` function.

TensorFlow is imported when something that needs it is called, never by the import of this package.
"""

from keras_transformer.models.weight_files import load_weights_only, save_weights_only
from keras_transformer.settings.training_settings import TrainingSettings
from keras_transformer.training.adam import FusedAdam, GlobalClipAdam, LayerwiseAdam
from keras_transformer.training.averaging import average_checkpoints
from keras_transformer.training.callbacks import HistoryFile, StepProgress, TimeLimit
from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.distribution import (
    mirrored_strategy,
    model_parallel_layout,
    strategy_scope,
)
from keras_transformer.training.divergence import StopOnNonFiniteLoss
from keras_transformer.training.loss_model import LabelSmoothedCrossEntropy, LossModel
from keras_transformer.training.metrics import (
    Perplexity,
    TokenAccuracy,
    TokenEvaluation,
    TokenEvaluator,
    TokenLoss,
    evaluate_tokens,
)
from keras_transformer.training.optimizer import TransformerSchedule, compile_model, make_optimizer
from keras_transformer.training.score_on_dev import BleuOnDev, ScoreOnDev
from keras_transformer.training.trainer import train
from keras_transformer.training.training_run import TrainingResult

__all__ = [
    "BleuOnDev",
    "Checkpoints",
    "FusedAdam",
    "GlobalClipAdam",
    "HistoryFile",
    "LabelSmoothedCrossEntropy",
    "LayerwiseAdam",
    "LossModel",
    "Perplexity",
    "ScoreOnDev",
    "StepProgress",
    "StopOnNonFiniteLoss",
    "TimeLimit",
    "TokenAccuracy",
    "TokenEvaluation",
    "TokenEvaluator",
    "TokenLoss",
    "TrainingResult",
    "TrainingSettings",
    "TransformerSchedule",
    "average_checkpoints",
    "compile_model",
    "evaluate_tokens",
    "load_weights_only",
    "make_optimizer",
    "mirrored_strategy",
    "model_parallel_layout",
    "save_weights_only",
    "strategy_scope",
    "train",
]
