"""The routes of the page: the card of a model, parts of a text, aligned words, attention."""

import json
import re
import urllib.parse
import urllib.request

import pytest

from keras_transformer.decoding import BeamSearch
from keras_transformer.inference.sentences import SentenceProfile
from keras_transformer.models import TransformerConfig
from keras_transformer.serving.models import ServedModel
from keras_transformer.serving.page import _facts
from tests.serving.echo import EchoModel, serving
from tests.tiny_translator import sentence, tiny_translator

TEXT = "The red dog runs. The cat sleeps in the house."
PROFILE = SentenceProfile(usual_length=20, longest=40, single_sentences=True)


@pytest.fixture(scope="module")
def translator():
    origin = {"name": "</script>", "license": "CC0"}
    return tiny_translator(search=BeamSearch(3), sentence_profile=PROFILE, origin=origin)


@pytest.fixture(scope="module")
def client(translator, tmp_path_factory):
    folder = translator.save(tmp_path_factory.mktemp("models") / "tiny")
    history = ["step,minutes,valid_bleu", "10,1.2,31.25", "20,2.4,30.5", "30,3.6,"]
    (folder / "history.csv").write_text("\n".join(history) + "\n")
    (folder / "training.json").write_text('{"fingerprint": {"pairs": 1234}}')
    saved, shared = EchoModel("saved"), EchoModel("shared")
    saved.card = {"sentence_profile": {**PROFILE.to_dict(), "tags": [">>fra<<"]}}
    shared.path = folder
    shared.pipeline = translator  # compiled once
    tiny = ServedModel("tiny", 1, folder)
    tiny.load()
    with serving(tiny, saved, shared, max_body_bytes=50_000) as client:
        yield client


def post(client, path, **inputs):
    return client.send("POST", f"/page/{path}", json.dumps({"inputs": inputs}).encode())


def test_the_page_has_the_card_of_each_model(client, translator):
    status, page = client.send("GET", "/")
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    tiny, saved, _ = json.loads(data)
    assert status == 200 and (tiny["name"], tiny["title"]) == ("tiny", "Translator")
    assert dict(tiny["facts"]) == {
        "Parameters": f"{translator.model.count_params():,}", "Layers": "1 + 1", "d_model": "32",
        "Heads": "4", "Vocabulary": "320", "Search": "3 beams, length penalty 0.6",
        "Training text": "1,234 pairs", "Validation BLEU": "31.2", "Origin": "</script>",
        "License": "CC0",
    }  # fmt: skip
    assert tiny["note"] == "" and saved["note"].startswith("From a SavedModel")
    assert saved["facts"] == [] and saved["title"] == "Model"


def test_the_card_of_a_parser_has_its_f1(tmp_path):
    (tmp_path / "history.csv").write_text("step,valid_f1\n10,61.25\n20,70.5\n")
    model = TransformerConfig(vocab_size=100).to_dict()
    facts = dict(_facts({"model": model, "task": "parsing"}, tmp_path))
    assert facts["Validation F1"] == "70.5"


def test_the_browser_runs_the_scripts_of_the_page_only(client):
    with urllib.request.urlopen(f"http://127.0.0.1:{client.port}/") as response:
        page, policy = response.read().decode(), response.headers["content-security-policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'" and rules["connect-src"] == "'self'"
    for tag in ("script", "style"):
        [nonce] = re.findall(rf'<{tag} nonce="([\w-]{{20,}})">', page)
        assert rules[f"{tag}-src"] == f"'nonce-{nonce}'"
    assert nonce not in client.send("GET", "/")[1]  # nobody can know it before
    assert not re.search(r"https?:|@import|url\(|innerHTML|style=", page)


LINES = (f"  {TEXT} ", " ", "", sentence(60))


def test_the_parts_of_a_line_are_the_line(client):
    status, answer = post(client, "tiny/parts", text=LINES)
    first, blank, empty, long = answer["parts"]
    assert status == 200 and (blank, empty) == ([[" ", ""]], [["", ""]])
    assert [shown for shown, _ in first] == ["  The red dog runs. ", TEXT[18:] + " "]
    assert len(long) > 1 and "".join(shown for shown, _ in long) == LINES[3]
    _, answer = post(client, "saved/parts", text=[f" >>fra<<  {TEXT}"])
    assert answer["parts"] == [
        [
            [" >>fra<<  The red dog runs. ", ">>fra<< The red dog runs. "],
            [TEXT[18:], f">>fra<< {TEXT[18:]}"],
        ]
    ]


def test_words_are_aligned_as_align_does(client, translator):
    text, answer = [sentence(5, 1), sentence(3, 2)], [sentence(4, 3), sentence(6, 4)]
    pairs = [[list(pair) for pair in found.pairs] for found in translator.align(text, answer)]
    assert post(client, "shared/pairs", text=text, answer=answer) == (200, {"pairs": pairs})
    for name, texts in (("shared", ["a", "a " * 2_000]), ("saved", ["a"])):
        none = {"pairs": [[] for _ in texts]}
        assert post(client, f"{name}/pairs", text=texts, answer=len(texts) * ["b"]) == (200, none)


def test_attention_is_a_page(client):
    form = urllib.parse.urlencode({"text": TEXT, "answer": "a <b>"}).encode()
    status, page = client.send("POST", "/page/tiny/attention", form)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    assert status == 200 and json.loads(data)["title"] == TEXT


@pytest.mark.parametrize(("path", "body", "status", "message"), [
    ("tiny/parts", json.dumps({"inputs": [20_001 * "a"]}).encode(), 400, "at most 20,000 bytes"),
    ("tiny/attention", b"answer=a&text=" + 2_001 * b"a", 400, "up to 2,000 bytes"),
    ("tiny/attention", b"text=+&answer=a", 400, "must have words"),
    ("saved/attention", b"text=a&answer=a", 400, "SavedModel"),
])  # fmt: skip
def test_other_requests_get_an_error(client, path, body, status, message):
    answered, content = client.send("POST", f"/page/{path}", body)
    assert answered == status and message in content["error"]
