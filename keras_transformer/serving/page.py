"""The page at `/`, which answers a text while it is typed, and the routes that it needs."""

import asyncio
import contextlib
import json
import pathlib
import secrets
import tempfile
import urllib.parse
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from keras_transformer.files import read_json
from keras_transformer.inference.sentences import split_sentences, split_tags
from keras_transformer.inference.tasks import get_task
from keras_transformer.layouts import HISTORY_FILE, SETTINGS_FILE
from keras_transformer.serving.protocol import RequestError, read_request, to_texts
from keras_transformer.settings.transformer_config import TransformerConfig, count_parameters
from keras_transformer.training.output_directory import HistoryFile

if TYPE_CHECKING:
    from keras_transformer.serving.app import Server

_TEMPLATE = pathlib.Path(__file__).with_name("page.html")
# The browser runs the script of the page and no others.
_POLICY = """default-src 'none'; img-src data:; connect-src 'self'; form-action 'self'; \
base-uri 'none'; frame-ancestors 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'"""
# Bytes of a text that is aligned: the time grows with the square of the length; and texts at once.
_MOST_BYTES, _MOST_TEXTS = 2_000, 100
_NOTE = """From a SavedModel, this page shows no history of the training, no attention and no \
aligned words. Serve the model directory to see them."""


def page_routes(server: "Server") -> dict[str, dict[str, Any]]:
    """Returns the functions of the page, which shows all models, by method and path."""

    def route(method, function, *names, read=read_request):
        async def compute(request, body, labels):
            model = server.model(request.scope["path"].split("/")[2])
            labels |= {"model": model.name, "method": method}
            columns = to_texts(read(body), names, server.settings.max_text_bytes).values()
            texts = [[text.decode("utf-8", "replace") for text in column] for column in columns]
            return await server.run(function, model, *texts)

        return {f"/page/[^/]+/{method}": {"POST": compute}}

    def read_form(body):
        return {"inputs": urllib.parse.parse_qs(body.decode("latin-1"))}

    async def show(request, body, labels):
        newest = [server.model(name) for name in server.models]
        return await asyncio.to_thread(_page, newest)

    return {
        "/": {"GET": show},
        **route("parts", _parts, "text"),
        **route("pairs", _pairs, "text", "answer"),
        **route("attention", _attention, "text", "answer", read=read_form),
    }


def _page(models):
    nonce, template = secrets.token_urlsafe(16), _TEMPLATE.read_text(encoding="utf-8")
    # Only "<" could end the script element that holds the data.
    cards = json.dumps(list(map(_card, models))).replace("<", "\\u003c")
    page = template.replace("NONCE", nonce).replace("DATA_OF_THE_PAGE", cards)
    headers = {"Content-Security-Policy": _POLICY.format(nonce=nonce)}
    return Response(page, headers=headers, media_type="text/html")


def _parts(model, lines):
    """Returns the parts of each line: as they are in the line, and as texts to answer."""
    split, profile = getattr(model.pipeline, "split", None), model.card.get("sentence_profile")
    parts = []
    for line in lines:
        shown, texts = [line], [line.strip()]
        if split and texts[0]:
            found = split(line)
            shown, texts = [part.text for part in found], [part.tags + part.text for part in found]
        elif texts[0] and profile and profile["single_sentences"]:
            tags, rest = split_tags(line, profile.get("tags") or ())
            shown = split_sentences(rest, profile["abbreviations"])
            texts = [tags + text for text in shown]
        shown[0] = line[: len(line) - sum(map(len, shown))] + shown[0]  # with the tags
        parts.append(list(zip(shown, texts, strict=True)))
    return {"parts": parts}


def _pairs(model, texts, answers):
    """Returns the aligned words of each text and its answer; none if they are long or many."""
    if _are_long(texts + answers) or not hasattr(model.pipeline, "align"):
        return {"pairs": [[] for _ in texts]}
    return {"pairs": [found.pairs for found in model.pipeline.align(texts, answers)]}


def _are_long(texts):
    is_long = any(len(text.encode()) > _MOST_BYTES for text in texts)
    return is_long or len(texts) > _MOST_TEXTS


def _attention(model, texts, answers):
    """Returns the page of the attention between the first text and its answer."""
    from keras_transformer.evaluation import attention_page, attention_weights

    if model.pipeline is None:
        raise RequestError(_NOTE)
    if _are_long(texts + answers):
        raise RequestError(f"Attention is drawn for texts of up to {_MOST_BYTES:,} bytes")
    weights = attention_weights(model.pipeline, texts[0], answers[0])
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
    rows = HistoryFile(folder / HISTORY_FILE, ("step",)).rows()
    for name in ("bleu", "f1"):
        scores = [float(row[f"valid_{name}"]) for row in rows if row.get(f"valid_{name}")]
        yield f"Validation {name.upper()}", scores and f"{max(scores):.1f}"
    if (folder / SETTINGS_FILE).is_file():
        pairs = read_json(folder / SETTINGS_FILE)["fingerprint"].get("pairs")
        yield "Training text", pairs and f"{pairs:,} pairs"
