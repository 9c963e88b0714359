"""The page at `/`, which answers a text while it is typed, and what it asks the server for."""

import contextlib
import csv
import json
import pathlib
import secrets
import tempfile
import urllib.parse
from collections.abc import Iterable, Sequence

from starlette.responses import Response

from keras_transformer.evaluation import attention_page, attention_weights
from keras_transformer.files import read_json, read_small_file
from keras_transformer.inference.sentence_ends import ENDS_JOINED, split_sentences
from keras_transformer.inference.sentences import split_tags
from keras_transformer.inference.tasks import get_task
from keras_transformer.layouts import HISTORY_FILE, LARGEST_HISTORY, SETTINGS_FILE
from keras_transformer.serving.models import ServedModel
from keras_transformer.serving.protocol import RequestError
from keras_transformer.settings.transformer_config import TransformerConfig, count_parameters

_TEMPLATE = pathlib.Path(__file__).with_name("page.html")
# The browser runs the script of the page and no others.
_POLICY = """default-src 'none'; img-src data:; connect-src 'self'; form-action 'self'; \
base-uri 'none'; frame-ancestors 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'"""
# Alignment takes a time that grows with the square of the length.
_MOST_BYTES = 2_000  # in a text that is aligned
_MOST_TEXTS = 100  # that are aligned at once
_NOTE = """From a SavedModel, this page shows no history of the training, no attention and no \
aligned words. Serve the model directory to see them."""


def model_page(models: Iterable[ServedModel]) -> Response:
    """Returns the page, with the cards of the models."""
    nonce, template = secrets.token_urlsafe(16), _TEMPLATE.read_text(encoding="utf-8")
    # Only "<" could end the script element that holds the data.
    cards = json.dumps(list(map(_card, models))).replace("<", "\\u003c")
    joined = json.dumps(ENDS_JOINED.removeprefix("(?s:.*)") + "$")
    page = template.replace("NONCE", nonce).replace("ENDS_JOINED", joined)
    page = page.replace("DATA_OF_THE_PAGE", cards)
    headers = {"Content-Security-Policy": _POLICY.format(nonce=nonce)}
    return Response(page, headers=headers, media_type="text/html")


def parts(model: ServedModel, lines: Sequence[str]) -> dict:
    """Returns the parts of each line: as they are in the line, and as texts to answer."""
    split, profile = getattr(model.pipeline, "split", None), model.card.get("sentence_profile")
    parts_of_lines = []
    for line in lines:
        shown, texts = [line], [line.strip()]
        if split and texts[0]:
            found = split(line)
            shown, texts = [part.text for part in found], [part.tags + part.text for part in found]
        elif texts[0] and profile and profile["single_sentences"]:
            tags, rest = split_tags(line, profile.get("tags") or ())
            shown = split_sentences(rest, profile["abbreviations"])
            texts = [tags + text for text in shown]
        shown[0] = line[: len(line) - sum(map(len, shown))] + shown[0]  # The tags come first.
        parts_of_lines.append(list(zip(shown, texts, strict=True)))
    return {"parts": parts_of_lines}


def pairs(model: ServedModel, texts: list[str], answers: list[str], *languages: list[str]) -> dict:
    """Returns the aligned words of each text and its answer; none if they are long or many."""
    if _are_long(texts + answers) or not hasattr(model.pipeline, "align"):
        return {"pairs": [[] for _ in texts]}
    pipeline = _in_languages(model, languages)
    return {"pairs": [found.pairs for found in pipeline.align(texts, answers)]}


def _in_languages(model, languages):
    """Returns the pipeline of a model in the languages of the first text."""
    if not languages:
        return model.pipeline
    return model.pipeline.with_languages(*(codes[0] or None for codes in languages))


def _are_long(texts):
    is_long = any(len(text.encode()) > _MOST_BYTES for text in texts)
    return is_long or len(texts) > _MOST_TEXTS


def attention(
    model: ServedModel, texts: list[str], answers: list[str], *languages: list[str]
) -> Response:
    """Returns the page of the attention between the first text and its answer."""
    if model.pipeline is None:
        raise RequestError(_NOTE)
    if _are_long(texts + answers):
        raise RequestError(f"Attention is drawn for texts of up to {_MOST_BYTES:,} bytes")
    weights = attention_weights(_in_languages(model, languages), texts[0], answers[0])
    with tempfile.TemporaryDirectory() as folder:
        page = attention_page(weights, pathlib.Path(folder, "page.html"), title=texts[0])
        return Response(page.read_bytes(), media_type="text/html")


def _card(model):
    """Returns what the page shows of a model."""
    has_files, title, facts = model.pipeline is not None, "Model", []
    with contextlib.suppress(Exception):  # A damaged file, or one that is being written.
        if "task" in model.card:
            title = get_task(model.card["task"]).pipeline.__name__
        for name, value in _facts(model.card, model.path):
            facts += [(name, str(value))] if value else []
    return {
        "name": model.name,
        "path": urllib.parse.quote(model.name, safe=""),
        "title": title,
        "has_files": has_files,
        **model.languages,
        "facts": facts,
        "note": "" if has_files else _NOTE,
    }


def _facts(card, folder):
    """Yields the lines of a model's card; raises an error if a file is damaged."""
    config, search = TransformerConfig.from_dict(card["model"]), card.get("search") or {}
    yield "Parameters", f"{count_parameters(config):,}"
    yield "Layers", f"{config.num_encoder_layers} + {config.num_decoder_layers}"
    yield "d_model", config.d_model
    yield "Heads", config.num_heads
    sizes = config.vocab_size, config.target_vocab_size
    yield "Vocabulary", " and ".join(f"{size:,}" for size in sizes if size)
    beams = "{beam_size} beams, length penalty {length_penalty:g}"
    yield "Search", beams.format(**search) if "beam_size" in search else search.get("name")
    origin = card.get("origin") or {}
    yield "Origin", origin.get("name")
    yield "License", origin.get("license")
    history = folder / HISTORY_FILE
    text = read_small_file(history, LARGEST_HISTORY) if history.is_file() else b""
    rows = list(csv.DictReader(text.decode("utf-8").splitlines()))
    task = get_task(card.get("task", "translation"))
    column = f"valid_{task.score_name}"
    scores = [float(row[column]) for row in rows if row.get(column)]
    yield f"Validation {task.score_label}", scores and f"{max(scores):.1f}"
    if (folder / SETTINGS_FILE).is_file():
        num_pairs = read_json(folder / SETTINGS_FILE)["fingerprint"].get("pairs")
        yield "Training text", num_pairs and f"{num_pairs:,} pairs"
