"""TensorFlow SavedModel: text in, translation out, for TensorFlow Serving or in-process use."""

import dataclasses
import os
import pathlib

import keras

from keras_transformer.batch_inference import one_answer, search_ids
from keras_transformer.data.special_tokens import EOS_ID, PAD_ID
from keras_transformer.errors import UserError
from keras_transformer.files import name_beside, remove, remove_leftovers, sync_to_disk

_REPLACED = ".replaced-"  # begins the name that an earlier export has while it is replaced
_ENTRIES = {
    "saved_model.pb",
    "variables",
    "assets",
    "assets.extra",
    "fingerprint.pb",
    "keras_metadata.pb",
}


def export_saved_model(translator, directory, search=None) -> pathlib.Path:
    """Writes a SavedModel that translates raw strings, tokenizer and search included.

    The SavedModel holds each weight of the model once, as float32 (or as the model keeps it),
    and no optimizer. It needs TensorFlow and the SentencePiece operations of `tensorflow_text`,
    and nothing else. Its signatures, with batch and lengths dynamic:

    - `serving_default`: `text` string `[batch]` -> `translation` string `[batch]` and `score`
      float32 `[batch]`;
    - `n_best`: `text` string `[batch]` -> `translations` string `[batch, n]` and `scores`
      float32 `[batch, n]`, best first. `n` is the search's `n_best`, or the beam size if that
      is 1.

    The answers are those of `Translator.translate` and `Translator.hypotheses`: text without
    subwords gives an empty translation and score 0, a source longer than the translator's
    `max_source_length` is cut, invalid UTF-8 is read as U+FFFD. The files are written aside and
    renamed; an export that is there already is replaced when the new one is complete.

    Args:
        translator: a `Translator`.
        directory: where to; missing, empty, or an earlier export. TensorFlow Serving expects
            its last part to be a version number, as in `models/en_de/1`.
        search: a `BeamSearch`, `GreedySearch` or `Sampling`; None for the translator's.

    Returns:
        `pathlib.Path`: the directory.

    Raises:
        UserError: if the directory holds anything else, or Keras does not run on TensorFlow.

    Example:

    >>> from keras_transformer import Translator  # doctest: +SKIP
    >>> translator = Translator.load("runs/en_de")  # doctest: +SKIP
    >>> export_saved_model(translator, "saved_models/en_de/1")  # doctest: +SKIP
    """
    if keras.backend.backend() != "tensorflow":
        raise UserError(
            "A SavedModel is written with the TensorFlow backend (KERAS_BACKEND=tensorflow). "
            f"Received: backend={keras.backend.backend()!r}"
        )
    directory = pathlib.Path(directory)
    check_export_directory(directory)
    remove_leftovers(directory)
    aside = name_beside(directory)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        _write(translator, search or translator.search, aside)
        sync_to_disk(aside)
        _replace(aside, directory)
    finally:
        remove(aside)
    # Not before: of an export killed half-way through, it may be all that was left.
    remove_leftovers(directory, _REPLACED)
    return directory


def check_export_directory(directory) -> None:
    """Raises unless `export_saved_model` may write there; to be known before a model is loaded.

    Args:
        directory: missing, empty, or an earlier export without any file of another origin.

    Raises:
        UserError: if it is a file, or holds what replacing an export would delete.

    Example:

    >>> import tempfile
    >>> from keras_transformer.export import check_export_directory
    >>> check_export_directory(tempfile.mkdtemp())
    """
    directory = pathlib.Path(directory)
    if not directory.exists():
        return
    if not directory.is_dir():
        raise UserError(f"Expected a directory to export to but {str(directory)!r} is a file.")
    names = {path.name for path in directory.iterdir()}
    if names and not (directory / "saved_model.pb").is_file():
        raise UserError(
            f"{str(directory)!r} holds other files and no SavedModel: name a new directory, "
            "an empty one, or an earlier export."
        )
    foreign = sorted(names - _ENTRIES)
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise UserError(
            f"{str(directory)!r} holds {foreign[0]!r}{more}, which replacing the SavedModel there "
            "would delete: move it away, or name a new directory."
        )


def _replace(new: pathlib.Path, directory: pathlib.Path) -> None:
    if not directory.exists():
        os.rename(new, directory)
        return
    # A directory that is not empty cannot be renamed onto: the old one steps aside first.
    old = name_beside(directory, _REPLACED)
    os.rename(directory, old)
    try:
        os.rename(new, directory)
    except BaseException:
        os.rename(old, directory)
        raise
    remove(old)


def _write(translator, search, path: pathlib.Path) -> None:
    import tensorflow as tf

    module = tf.Module(name="translator")
    # The model itself stays in the closure: tracked, it would bring its layers' bookkeeping
    # and, once compiled, the optimizer, and each weight a second time.
    module.model_variables = [weight.value for weight in translator.model.weights]
    module.source_tokenizer = translator.source_tokenizer.in_graph()
    if translator.target_tokenizer is translator.source_tokenizer:
        module.target_tokenizer = module.source_tokenizer
    else:
        module.target_tokenizer = translator.target_tokenizer.in_graph()

    text = tf.TensorSpec([None], tf.string, name="text")
    best, several = one_answer(search), _several_answers(search)

    @tf.function(input_signature=[text])
    def translate(text):
        texts, scores = _translate(module, translator, best, text)
        return {"translation": texts[:, 0], "score": scores[:, 0]}

    @tf.function(input_signature=[text])
    def n_best(text):
        texts, scores = _translate(module, translator, several, text)
        return {"translations": texts, "scores": scores}

    module.translate = translate
    module.n_best = n_best
    tf.saved_model.save(
        module, str(path), signatures={"serving_default": translate, "n_best": n_best}
    )


def _several_answers(search):
    """Returns the search of the `n_best` signature: one answer per beam if `n_best` is 1."""
    if getattr(search, "n_best", None) == 1:
        return dataclasses.replace(search, n_best=search.beam_size)
    return search


def _translate(module, translator, search, text):
    """Translates in the graph: string `[batch]` -> string and float32 `[batch, n]`."""
    import tensorflow as tf

    source, num_subwords = _encode(module, translator, text)
    max_lengths = translator.max_lengths(num_subwords)
    # A batch without rows is searched with one row of padding, which is dropped again.
    is_no_batch = tf.cast(tf.equal(tf.shape(source)[0], 0), tf.int32)
    source = tf.pad(source, [[0, is_no_batch], [0, 0]])
    max_lengths = tf.pad(max_lengths, [[0, is_no_batch]], constant_values=1)
    result = search_ids(translator.model, source, max_lengths, search)

    batch = tf.shape(text)[0]
    is_empty = tf.equal(num_subwords, 0)
    tokens = tf.where(is_empty[:, None, None], PAD_ID, result.tokens[:batch])
    scores = tf.where(is_empty[:, None], 0.0, tf.cast(result.scores[:batch], tf.float32))
    num_answers, length = tf.shape(tokens)[1], tf.shape(tokens)[2]
    texts = module.target_tokenizer.detokenize(
        tf.reshape(tokens, [batch * num_answers, length])  # [batch * n, length]
    )
    texts = tf.reshape(texts, [batch, num_answers])
    if tokens.shape[1] is not None:
        texts = tf.ensure_shape(texts, [None, tokens.shape[1]])
    return texts, scores


def _encode(module, translator, text):
    """Tokenises in the graph: int32 `[batch, length]` with EOS, and int32 `[batch]` without."""
    import tensorflow as tf

    ids = module.source_tokenizer.tokenize(text)
    ids = tf.cast(ids, tf.int32)[:, : translator.max_source_length - 1]
    num_subwords = tf.cast(ids.row_lengths(), tf.int32)
    ends = tf.fill([tf.shape(text)[0], 1], EOS_ID)
    source = tf.concat([ids, ends], axis=1).to_tensor(default_value=PAD_ID)
    return source, num_subwords
