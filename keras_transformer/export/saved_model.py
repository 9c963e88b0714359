"""TensorFlow SavedModel: text in, translation or tree out, for TensorFlow Serving or in-process."""

import pathlib

import keras

from keras_transformer.errors import UserError
from keras_transformer.export.formats import export_folder
from keras_transformer.export.steps import with_dtype
from keras_transformer.export.warmup import warmup_texts, write_warmup_requests
from keras_transformer.inference.tasks import get_task, load_entry
from keras_transformer.layers.checks import check_choice, check_positive_integer

PRECISIONS = ("float32", "bfloat16")


def export_saved_model(
    translator, directory, search=None, dtype=None, num_streams: int = 1
) -> pathlib.Path:
    """Writes a SavedModel that translates or parses raw strings, tokenizer and search included.

    The SavedModel holds each weight of the model once and no optimizer. It needs TensorFlow and
    the SentencePiece operations of `tensorflow_text`, and nothing else. The signatures of a
    translator's, with batch and lengths dynamic, and one row of every output for each text:

    - `serving_default`: `text` -> `translation`, `score`, `truncated`;
    - `n_best`: `text` -> `translations` and `scores` `[batch, n]`, best first, and `truncated`.
      `n` is the search's `n_best`, or the beam size if that is 1;
    - `score`: `text` and `translation` -> `log_probability`, `num_tokens`, and for each token
      `tokens` and `token_log_probabilities`, padded with `""` and 0; `truncated`;
    - `attention`: `text` and `translation` -> `attention` `[batch, target, source]` of the last but
      one decoder block, averaged over its heads, 0 where padded, row t being of the step that
      predicts target token t; `source_tokens`, `target_tokens`; `truncated`;
    - `limits`: `text` -> `num_tokens` of the text, `max_source_tokens`, `max_translation_tokens`,
      `truncated`, and `settings`, JSON with the search and the lengths.

    The answers are those of `Translator.translate` with `long_texts="truncate"`, `hypotheses` and
    `score`: text without subwords gives an empty translation and score 0, invalid UTF-8 is read as
    U+FFFD. Nothing fails for its length: a source longer than the translator's `max_source_length`,
    or a given translation longer than any that can be found, is cut, and `truncated` says so.

    The signatures of a parser's, of text whose words are separated by white space:

    - `serving_default`: `text` -> `tree` in brackets, `score`, `truncated`;
    - `n_best`: `text` -> `trees` and `scores` `[batch, n]`, best first, and `truncated`;
    - `limits`: `text` -> `num_words`, `num_tokens`, `max_source_tokens`, `max_tree_tokens`,
      `truncated` and `settings`.

    The trees are those of `Parser.parse` and `parses`, over all the words even where the source is
    cut; brackets among the words are `-LRB-` and `-RRB-`, and text without words gives `(())` and
    score 0. The search must be constrained to well-formed trees.

    `assets.extra/tf_serving_warmup_requests` holds requests for every signature, which TensorFlow
    Serving answers before it serves the model. The files are written aside and renamed; an export
    that is there already is replaced when the new one is complete.

    Args:
        translator: a `Translator` or a `Parser`.
        directory: where to; missing, empty, or an earlier export. TensorFlow Serving expects
            its last part to be a version number, as in `models/en_de/1`.
        search: a `BeamSearch`, `GreedySearch` or `Sampling`; None for the translator's.
        dtype: `"float32"`, or `"bfloat16"` to store and compute in half the bytes, whose
            rounding changes some answers; None for what the model has.
        num_streams: parts of a request that are searched at the same time, each by a thread. On a
            CPU, with as many as there are cores and one thread for an operation
            (`tf.config.threading.set_intra_op_parallelism_threads(1)`, or the model server's
            `--tensorflow_intra_op_parallelism=1`), many sentences take less time than one after
            the other with all threads for each operation. The answers stay the same.

    Returns:
        `pathlib.Path`: the directory.

    Raises:
        UserError: if the directory holds anything else, Keras does not run on TensorFlow, or the
            search of a parser is not constrained to well-formed trees.
        ValueError: if there is no such `dtype`, or `num_streams` is no positive integer.

    Example:

    >>> from keras_transformer import Translator  # doctest: +SKIP
    >>> translator = Translator.load("runs/en_de")  # doctest: +SKIP
    >>> export_saved_model(translator, "saved_models/en_de/1")  # doctest: +SKIP
    """
    if dtype is not None:
        check_choice("dtype", dtype, PRECISIONS)
    check_positive_integer("num_streams", num_streams)
    if keras.backend.backend() != "tensorflow":
        raise UserError(
            "A SavedModel is written with the TensorFlow backend (KERAS_BACKEND=tensorflow). "
            f"Received: backend={keras.backend.backend()!r}"
        )
    task = get_task(translator.task)
    task.check_served(translator)
    functions = load_entry(task.served_functions)
    directory = pathlib.Path(directory)
    model = translator.model if dtype is None else with_dtype(translator.model, dtype)
    with export_folder(directory, "saved_model") as aside:
        _write(functions, translator, model, search or translator.search, num_streams, aside)
        # TensorFlow Serving's folders are numbers below a folder with the model's name.
        path = directory.resolve()
        name = path.parent.name if path.name.isdecimal() else path.name
        requests = [
            (signature, dict.fromkeys(inputs, texts))
            for texts in warmup_texts(translator.source_tokenizer)
            for signature, inputs in functions.inputs.items()
        ]
        write_warmup_requests(aside, requests, name or "translator")
    return directory


def _write(functions, translator, model, search, num_streams, path: pathlib.Path) -> None:
    import tensorflow as tf

    from keras_transformer.export.served_module import ServedModule

    module = ServedModule(functions, translator, model, search, num_streams)
    tf.saved_model.save(module, str(path), signatures=module.functions())
