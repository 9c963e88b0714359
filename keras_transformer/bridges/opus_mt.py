"""Published OPUS-MT models, trained with Marian, as a `Translator`: from their files alone."""

import functools
import math
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.bridges import peer
from keras_transformer.bridges.hub import find_model, read_weights
from keras_transformer.bridges.marian import (
    ACTIVATIONS,
    NAMES,
    block_weights,
    marian_order,
    reordered,
)
from keras_transformer.data.lookup_tokenizers import MappedTokenizer
from keras_transformer.data.tokenizer import BOS_ID, EOS_ID, LANGUAGE, PAD_ID, SPECIAL_PIECES
from keras_transformer.data.tokenizer_pair import LARGEST_VOCABULARY
from keras_transformer.decoding import (
    BeamSearch,
    MinimumLength,
    NoRepeatNgrams,
    RepetitionPenalty,
    SuppressTokens,
)
from keras_transformer.errors import UserError
from keras_transformer.files import read_json, read_small_file
from keras_transformer.inference.model_directory import reading_values
from keras_transformer.inference.translator import Translator
from keras_transformer.models import Transformer, TransformerConfig
from keras_transformer.models.weight_files import check_finite
from keras_transformer.settings.transformer_config import count_parameters

# The value of a setting that a file lacks, and the value that can be imported.
_SETTINGS = {
    "scale_embedding": (False, True),
    "static_position_embeddings": (True, True),
    "tie_word_embeddings": (True, True),
    "normalize_before": (False, False),
    "normalize_embedding": (False, False),
    "add_final_layer_norm": (False, False),
}
# Settings of transformers' generation that change the best answer, by the value without effect.
# Others concern sampling or the speed.
_NEUTRAL = {
    0: "encoder_no_repeat_ngram_size do_sample early_stopping diversity_penalty",
    1: "encoder_repetition_penalty guidance_scale num_beam_groups",
    None: "penalty_alpha constraints force_words_ids sequence_bias stop_strings "
    "begin_suppress_tokens forced_bos_token_id exponential_decay_length_penalty max_time "
    "watermarking_config dola_layers",
}
# torch's default, which transformers does not write into files.
_EPSILON = 1e-5
# Published tensors that a model may lack: copies of the embedding, positions, versions.
_NOT_READ = re.compile(
    r"lm_head\.weight|model\.shared\.weight|final_logits_bias|"
    r"model\.(encoder|decoder)\.(embed_(tokens|positions)\.weights?|version)"
)
# The logit of ids that must not be generated.
NEVER = -100.0


def load_opus_mt(source: str | os.PathLike, dtype: Any = None) -> Translator:
    """Returns a `Translator` with a published OPUS-MT model, read from its files.

    Its ids are the published ones in another order: padding 0, unknown 1, BOS 2 (Marian begins with
    padding), EOS 3, then the others. The search is beam search with the published number of beams
    and `length` normalization. `translator.origin` has the name and the license of the model.

    Args:
        source: A folder in transformers' format with `config.json`, `vocab.json`, `source.spm`,
            `target.spm` and the weights, `model.safetensors` or `pytorch_model.bin`; or the name of
            a model on the hub, such as `"Helsinki-NLP/opus-mt-en-de"`.
        dtype: Dtype policy of the model; None for the global one.

    Raises:
        UserError: If a file is missing or damaged, files do not fit together, or the architecture
            is another one.

    Example:

    >>> from keras_transformer.bridges import load_opus_mt
    >>> translator = load_opus_mt("Helsinki-NLP/opus-mt-en-de")  # doctest: +SKIP
    >>> translator.translate(["A dog runs."])  # doctest: +SKIP

    Reference: Tiedemann and Thottingal (2020), "OPUS-MT", https://aclanthology.org/2020.eamt-1.61.
    """
    folder = find_model(source, "marian")
    path = folder / "config.json"
    settings = read_json(path)
    is_shared = settings.get("share_encoder_decoder_embeddings", True)
    names = ("vocab.json",) if is_shared else ("vocab.json", "target_vocab.json")
    vocabularies = [read_vocabulary(folder / name) for name in names]
    with reading_values(path):
        config = _config(settings, [len(vocabulary) for vocabulary in vocabularies])
        longest = min(1024, settings.get("max_position_embeddings", 1024))
    with reading_values(repr(str(folder))):  # config.json or generation_config.json
        generation = read_generation(folder, settings)
        check_generation(generation, vocabularies[-1])
        search = search_of(generation, published_rows(vocabularies[-1]))
    source_tokenizer, target_tokenizer = _tokenizers(folder, vocabularies)
    weights = PublishedWeights(*read_weights(folder))
    rows = [published_rows(vocabulary) for vocabulary in vocabularies]
    weights.check(config, [len(vocabulary) for vocabulary in vocabularies])
    model = Transformer(config, dtype=dtype, initialize=False)
    weights.copy_to(model, rows)
    origin = origin_of(source, folder, settings)
    tokenizers = source_tokenizer, target_tokenizer
    return Translator(model, *tokenizers, search, max_source_length=longest, origin=origin)


def read_vocabulary(path):
    """Returns the published ids by piece."""
    vocabulary = read_json(path)
    if sorted(map(repr, vocabulary.values())) != sorted(map(repr, range(len(vocabulary)))):
        raise UserError(f"{str(path)!r} must give the ids from 0 to {len(vocabulary) - 1:,}, once.")
    for piece in ("<pad>", "<unk>", "</s>"):
        if piece not in vocabulary:
            raise UserError(f"{str(path)!r} lacks the piece {piece!r}.")
    return vocabulary


def published_rows(vocabulary: Mapping[str, int], start: str = "<pad>") -> list[int]:
    """Returns the published id of each of our ids; BOS is `start`, which the decoder begins with.

    Args:
        vocabulary: Published ids by piece.
        start: `"<pad>"` in Marian, `"</s>"` in fairseq.
    """
    special = [vocabulary[piece] for piece in ("<pad>", "<unk>", start, "</s>")]
    return [*special, *(number for number in range(len(vocabulary)) if number not in special)]


def read_generation(folder: pathlib.Path, settings: Mapping) -> dict[str, Any]:
    """Returns the settings of generation, which are in `config.json` or in a file of their own."""
    path = folder / "generation_config.json"
    given = read_json(path).items() if path.exists() else ()
    return {**settings, **{name: value for name, value in given if value is not None}}


def search_of(generation: Mapping[str, Any], rows: Sequence[int]) -> BeamSearch:
    """Returns the search that settings of generation describe.

    Args:
        generation: Settings that `check_generation` accepts.
        rows: The published id of each of our ids.
    """
    constraints: list[Any] = []
    penalty = generation.get("repetition_penalty") or 1
    if penalty != 1:
        constraints.append(RepetitionPenalty(penalty))
    if size := generation.get("no_repeat_ngram_size"):
        constraints.append(NoRepeatNgrams(size))
    # transformers counts the token that the decoder begins with in `min_length`, we count the end.
    min_length, new_tokens = generation.get("min_length"), generation.get("min_new_tokens")
    length = min_length if new_tokens is None else new_tokens + 1
    if length:
        constraints.append(MinimumLength(length))
    words = [number for [number] in generation.get("bad_words_ids") or ()]
    words += generation.get("suppress_tokens") or ()
    # Padding and BOS are never generated, and transformers ignores an end among bad words.
    if ids := sorted({rows.index(number) for number in words} - {PAD_ID, BOS_ID, EOS_ID}):
        constraints.append(SuppressTokens(tuple(ids)))
    return BeamSearch(
        beam_size=generation.get("num_beams", 1),
        length_penalty=generation.get("length_penalty", 1.0),
        length_normalization="length",
        constraints=tuple(constraints),
    )


def model_sizes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sizes and rates of a model, but for its vocabulary."""
    sizes = {}
    for ours, names in NAMES.items():
        received = [settings.get(name, 0.0 if "dropout" in name else None) for name in names]
        sizes[ours] = peer.single(names[0].removeprefix("encoder_"), received)
    return sizes


def _config(settings, sizes):
    activation = settings.get("activation_function")
    peer.check_supported(
        activation in ACTIVATIONS,
        f"`activation_function` must be one of {', '.join(map(repr, ACTIVATIONS))}",
        activation_function=activation,
    )
    for name, (default, required) in _SETTINGS.items():
        value = settings.get(name, default)
        rule = f"Models with {name}={required!r} can be imported"
        peer.check_supported(value is required, rule, **{name: value})
    values = model_sizes(settings)
    # The ids, and BOS, which is padding in Marian.
    values["vocab_size"], *target_size = [size + 1 for size in sizes]
    return TransformerConfig(
        activation=ACTIVATIONS[activation],
        target_vocab_size=target_size[0] if target_size else None,
        use_bias=True,
        output_bias=True,
        norm_epsilon=_EPSILON,
        **values,
    )


def check_generation(settings, vocabulary, start="<pad>"):
    """Raises a `ValueError` if a special token has another id, or a setting is not supported."""
    neutral: dict[str, Any] = {n: value for value, names in _NEUTRAL.items() for n in names.split()}
    neutral["forced_eos_token_id"] = vocabulary["</s>"]  # An answer ends at its limit.
    # transformers applies the penalty to logits without beams, and to the end where it begins too.
    if settings.get("num_beams", 1) == 1 or start == "</s>":
        neutral["repetition_penalty"] = 1
    for name, value in neutral.items():
        rule = f"A model whose files set `{name}` cannot be imported: the search would ignore it"
        received = settings.get(name)
        peer.check_supported(received in (None, value), rule, **{name: received})
    words = settings.get("bad_words_ids") or ()
    rule = "`bad_words_ids` must be lists of one token: the search rules out no others"
    peer.check_supported(all(len(word) == 1 for word in words), rule, bad_words_ids=words)
    tokens, rule = settings.get("suppress_tokens") or (), "`suppress_tokens` must leave out the end"
    peer.check_supported(vocabulary["</s>"] not in tokens, rule, suppress_tokens=tokens)
    pieces = {"pad_token_id": "<pad>", "eos_token_id": "</s>", "decoder_start_token_id": start}
    for name, piece in pieces.items():
        rule = f"`{name}` must be the id of {piece!r}, {vocabulary[piece]}"
        peer.check_supported(
            settings.get(name) == vocabulary[piece], rule, **{name: settings.get(name)}
        )


def _tokenizers(folder, vocabularies):
    tokenizers = []
    of_sides = vocabularies[0], vocabularies[-1]
    for side, vocabulary in zip(("source", "target"), of_sides, strict=True):
        path = folder / f"{side}.spm"
        if not path.is_file():
            rule = "Models with SentencePiece can be imported, and not those with BPE alone"
            raise UserError(f"{rule}. Received: {str(folder)!r} without {path.name}")
        ids, by_id = published_rows(vocabulary), {n: piece for piece, n in vocabulary.items()}
        # A piece `<s>` is in some vocabularies; no text has it.
        pieces = [f"{by_id[n]}_" if by_id[n] in SPECIAL_PIECES else by_id[n] for n in ids[4:]]
        codes = [piece for piece in pieces if LANGUAGE.fullmatch(piece) and len(piece) > 4]
        # A model with a single target language needs no code.
        languages = codes if side == "source" and len(codes) > 1 else ()
        with reading_values(repr(str(path))):
            model = read_small_file(path, LARGEST_VOCABULARY)
            tokenizers.append(MappedTokenizer(model, pieces, languages))
    return tokenizers


def origin_of(source, folder, settings):
    """Returns the name of a model, and the license in the head of its card."""
    name = settings.get("_name_or_path")
    # A folder may be a copy from the hub. Other names are folders of those who published the model.
    is_copy = pathlib.Path(source).is_dir() and isinstance(name, str)
    is_copy = is_copy and re.fullmatch(r"\w[\w.-]*/[\w.-]+", name) is not None
    origin = {"name": name if is_copy else str(source)}
    card = folder / "README.md"
    if card.is_file():
        with open(card, encoding="utf-8", errors="replace") as file:
            text = file.read(2**16)  # Only its head is needed.
        head = re.match(r"---\n.*?\n---", text, re.DOTALL)
        if found := head and re.search(r"^license: *(\S.*)$", head[0], re.MULTILINE):
            origin["license"] = found[1].strip()
    return origin


class PublishedWeights:
    """The tensors of a file by name, which must have the shapes of our model."""

    def __init__(self, path: pathlib.Path, tensors: Mapping):
        self._path, self._tensors = path, tensors
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def get(self, name, *shape):
        if name not in self._tensors:
            raise UserError(f"{str(self._path)!r} lacks the tensor {name!r}.")
        tensor = self._tensors[name]
        if tuple(tensor.shape) != shape:
            raise UserError(
                f"{str(self._path)!r} does not fit config.json and the vocabulary: {name!r} must "
                f"have the shape {shape}. Received: {tuple(tensor.shape)}"
            )
        self._read.add(name)
        return tensor

    def check(self, config: TransformerConfig, sizes: list[int], num_computed: int = 0) -> None:
        """Raises a `UserError` if the tensors do not fit, before a model is built.

        `num_computed` is the number of weights that no file has.
        """
        for matrix, size in zip(self._embeddings(sizes), sizes, strict=True):
            self.get(matrix, size, config.d_model)
        num_stored = sum(math.prod(tensor.shape) for tensor in self._tensors.values())
        num_computed += 2 * (config.d_model + 1)  # BOS has a row of its own.
        if count_parameters(config) > num_stored + num_computed:
            expected = f"{count_parameters(config):,} numbers of the model in config.json"
            raise UserError(
                f"{str(self._path)!r} has {num_stored:,} numbers, fewer than the {expected}."
            )

    def check_copied(self, model: Transformer) -> None:
        """Raises a `UserError` if tensors are of another architecture, or numbers not finite."""
        for name in self._tensors:
            if name not in self._read and not _NOT_READ.fullmatch(name):
                rule = "has a tensor that the model in config.json does not have"
                raise UserError(f"{str(self._path)!r} {rule}. Received: {name!r}")
        check_finite(model, self._path)

    def _embeddings(self, sizes):
        if len(sizes) == 1:
            return ["model.shared.weight"]
        return [f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")]

    def copy_to(self, model: Transformer, rows: list[list[int]]) -> None:
        """Sets the weights of a model; `rows` are the published ids of each vocabulary's ids."""
        d_model = model.config.d_model
        reorder = functools.partial(reordered, order=np.argsort(marian_order(d_model)))
        sizes = [len(ids) - 1 for ids in rows]
        embeddings = [model.target_embedding]
        if len(rows) == 2:
            embeddings.insert(0, model.source_embedding)
        names = self._embeddings(sizes)
        for layer, name, size, ids in zip(embeddings, names, sizes, rows, strict=True):
            matrix = self.get(name, size, d_model)[ids]
            peer.read({name: layer.embeddings}, {name: matrix}, reorder)
        bias = peer.array(self.get("final_logits_bias", 1, sizes[-1]))[0, rows[-1]]
        bias[[PAD_ID, BOS_ID]] = NEVER
        peer.read({"bias": model.target_embedding.bias}, {"bias": bias})
        for variables, tensors in block_weights(model, lambda name, shape: self.get(name, *shape)):
            peer.read(variables, tensors, reorder)
        self.check_copied(model)
