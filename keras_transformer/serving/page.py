"""The page at `/`, which answers a text while it is typed, and the routes that it needs."""

import asyncio
import base64
import functools
import hashlib
import json
import pathlib
import re
import tempfile
import urllib.parse
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from keras_transformer.files import read_json
from keras_transformer.inference.sentences import split_sentences
from keras_transformer.inference.tasks import get_task
from keras_transformer.serving.models import ServedModel
from keras_transformer.serving.protocol import RequestError, read_request, to_texts
from keras_transformer.settings.training_settings import SETTINGS_FILE
from keras_transformer.settings.transformer_config import TransformerConfig, count_parameters
from keras_transformer.training.output_directory import HISTORY_FILE, HistoryFile

if TYPE_CHECKING:
    from keras_transformer.serving.app import Server

_TEMPLATE = pathlib.Path(__file__).with_name("page.html")
_MOST_BYTES = 2_000  # of a text whose attention is computed: it grows with the square of the length
_NOTE = """A SavedModel holds neither the history of its training nor what draws its attention and \
aligns its words. Serve the model directory to see them."""


def page_routes(server: "Server") -> list[BaseRoute]:
    """Returns the routes of the page, which shows the `models` of a server."""

    def route(method, function, *names, read=read_request):
        async def compute(request, labels):
            model = server.model(request.path_params["model"])
            labels |= {"model": model.name, "method": method}
            columns = to_texts(read(await server.body(request)), names).values()
            texts = [[text.decode("utf-8", "replace") for text in column] for column in columns]
            return await server.run(function, model, *texts)

        answer = functools.partial(server.respond, compute=compute)
        return Route(f"/page/{{model}}/{method}", answer, methods=["POST"])

    def read_form(body):
        return {"inputs": urllib.parse.parse_qs(body.decode("latin-1"))}

    async def show(request: Request) -> Response:
        template = _TEMPLATE.read_text(encoding="utf-8")
        newest = [server.model(name) for name in server.models]
        cards = await asyncio.to_thread(lambda: json.dumps([_card(model) for model in newest]))
        # Only "<" could end the script element that holds the data.
        page = template.replace("DATA_OF_THE_PAGE", cards.replace("<", "\\u003c"))
        headers = {"Content-Security-Policy": _policy(template)}
        return Response(page, headers=headers, media_type="text/html")

    return [
        Route("/", show),
        route("parts", _parts, "text"),
        route("pairs", _pairs, "text", "answer"),
        route("attention", _attention, "text", "answer", read=read_form),
    ]


def _policy(page):
    """Returns a policy that allows the script and the style of the page, and no others."""
    policy = "default-src 'none'; img-src data:; connect-src 'self'; form-action 'self'; "
    policy += "base-uri 'none'; frame-ancestors 'none'"
    for tag, text in re.findall(r"<(script|style)>(.*?)</\1>", page, re.S):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        policy += f"; {tag}-src 'sha256-{digest}'"
    return policy


def _parts(model, lines):
    """Returns the parts of each line: as they are in the line, and as texts to answer."""
    split, profile = getattr(model.pipeline, "split", None), model.card.get("sentence_profile")
    parts = []
    for line in lines:
        shown, texts = [line], [line.strip()]
        if split and texts[0]:
            found = split(line)
            shown, texts = [part.text for part in found], [part.tags + part.text for part in found]
            shown[0] = line[: len(line) - sum(map(len, shown))] + shown[0]  # with the tags
        elif texts[0] and profile and profile["single_sentences"]:
            shown = texts = split_sentences(line, profile["abbreviations"])
        parts.append(list(zip(shown, texts, strict=True)))
    return {"parts": parts}


def _pairs(model, texts, answers):
    """Returns the aligned words of each text and its answer; none if a text is long."""
    is_long = any(len(text.encode()) > _MOST_BYTES for text in texts + answers)
    if is_long or not hasattr(model.pipeline, "align"):
        return {"pairs": [[] for _ in texts]}
    return {"pairs": [found.pairs for found in model.pipeline.align(texts, answers)]}


def _attention(model, texts, answers):
    """Returns the page of the attention between the first text and its answer."""
    from keras_transformer.evaluation import attention_page, attention_weights

    if model.pipeline is None:
        raise RequestError(_NOTE)
    if any(len(text.encode()) > _MOST_BYTES for text in texts + answers):
        raise RequestError(f"Attention is drawn for texts of up to {_MOST_BYTES:,} bytes")
    weights = attention_weights(model.pipeline, texts[0], answers[0])
    with tempfile.TemporaryDirectory() as folder:
        page = attention_page(weights, pathlib.Path(folder, "page.html"), title=texts[0])
        return page.read_text(encoding="utf-8")


def _card(model: ServedModel) -> dict[str, Any]:
    """Returns what the page shows of a model."""
    task, has_files = model.card.get("task"), model.pipeline is not None
    facts = _facts(model.card, model.path) if "model" in model.card else {}
    return {
        "name": model.name,
        "path": urllib.parse.quote(model.name, safe=""),
        "title": get_task(task).pipeline.__name__ if task else "Model",
        "has_files": has_files,
        "facts": [(name, str(value)) for name, value in facts.items() if value],
        "note": "" if has_files else _NOTE,
    }


def _facts(card, folder):
    """Returns the sizes of a model, its search, its training and its license, by name."""
    config, search = TransformerConfig.from_dict(card["model"]), card.get("search") or {}
    beams = "{beam_size} beams, length penalty {length_penalty:g}" if "beam_size" in search else ""
    sizes = [f"{size:,}" for size in (config.vocab_size, config.target_vocab_size) if size]
    facts = {
        "Parameters": f"{count_parameters(config):,}",
        "Layers": f"{config.num_encoder_layers} + {config.num_decoder_layers}",
        "d_model": config.d_model,
        "Heads": config.num_heads,
        "Vocabulary": " and ".join(sizes),
        "Search": beams.format(**search) or search.get("name"),
    }
    if (folder / SETTINGS_FILE).is_file():
        pairs = read_json(folder / SETTINGS_FILE).get("fingerprint", {}).get("pairs")
        facts["Training text"] = pairs and f"{pairs:,} pairs"
    rows = HistoryFile(folder / HISTORY_FILE, ("step",)).rows()
    for name in ("bleu", "f1"):
        scores = [float(row[f"valid_{name}"]) for row in rows if row.get(f"valid_{name}")]
        facts[f"Validation {name.upper()}"] = scores and f"{max(scores):.1f}"
    origin = card.get("origin") or {}
    return facts | {"Origin": origin.get("name"), "License": origin.get("license")}
