"""Loss, schedule, metrics, averaging, checkpoints and the `train` function.

With the other backends, TensorFlow is imported only when something that needs it is called.
"""

# These imports register the classes that Keras needs to load a compiled model.
from keras_transformer import (
    lazy_names,
    losses,  # noqa: F401
)
from keras_transformer.training import metrics, muon, optimizer  # noqa: F401

_MODULES = {
    "callbacks": ["StepProgress", "StopOnNonFiniteLoss", "TimeLimit"],
    "checkpoints": ["Checkpoints"],
    "compilation": ["compile_model", "make_optimizer"],
    "adaptation": ["enable_lora"],
    "distribution": [
        "make_distribution",
        "mirrored_strategy",
        "model_parallel_layout",
        "strategy_scope",
    ],
    "metrics": [
        "Perplexity",
        "TokenAccuracy",
        "TokenEvaluation",
        "TokenEvaluator",
        "TokenLoss",
        "evaluate_tokens",
    ],
    "muon": ["Muon"],
    "optimizer": ["FusedAdam", "GlobalClipAdam", "LayerwiseAdam", "TransformerSchedule"],
    "processes": ["ProcessGroup", "joined_processes", "process_group"],
    "scores": ["BleuOnDev", "ScoreOnDev"],
    "state": ["HistoryFile"],
    "trainer": ["TrainingResult", "train"],
    # Of the parent package.
    ".losses": ["LabelSmoothedCrossEntropy", "LossModel"],
    ".models.weight_files": ["average_checkpoints", "load_weights_only", "save_weights_only"],
    ".settings.training_settings": ["TrainingSettings"],
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _MODULES)
