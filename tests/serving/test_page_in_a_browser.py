"""The page in Chromium: answers while a text is typed, words that are aligned, trees, a phone."""

import time

import numpy as np
import pytest

from keras_transformer.inference import Alignment
from keras_transformer.inference.sentence_ends import split_sentences
from keras_transformer.inference.sentences import TextPart
from tests.browser import Select, WebDriverWait, chromium, show, webdriver
from tests.serving.echo import Echo, EchoModel, serving

HOSTILE = "<img src=x onerror=alert(1)> </script>&amp; \"'`"
TREE = "(S (NP (DT The) (NN dog)) (VP (VBZ barks) (ADVP (RB -LRB-loud-RRB-))))"


class Reversed(Echo):
    """Answers with the words in the other order, and with the text itself."""

    def __call__(self, texts):
        lines = [text.decode() for text in texts["text"]]
        time.sleep(0.6 * any("slow" in line for line in lines))
        answers = [[" ".join(line.split()[::-1]).encode(), line.encode()] for line in lines]
        scores = np.tile([-0.25, -1.5], [len(lines), 1])
        is_cut = np.array(["long" in line for line in lines])
        return {"translations": np.array(answers, object), "scores": scores, "truncated": is_cut}


class Trees(Echo):
    def __call__(self, texts):
        trees = [[TREE, "(())"] for _ in texts["text"]]
        scores = np.tile([-0.5, -np.inf], [len(trees), 1])  # of a tree that is none
        return {"trees": np.char.encode(trees).astype(object), "scores": scores}


class Named(Echo):
    """Answers with the codes of the languages of each text."""

    def __call__(self, texts):
        codes = zip(texts["source_language"], texts["target_language"], strict=True)
        answers = [[b" to ".join(pair)] for pair in codes]
        return {"translations": np.array(answers, object), "scores": np.zeros([len(answers), 1])}


class ReversedPipeline:
    def split(self, text):
        return [TextPart(part, []) for part in split_sentences(text)]

    def align(self, texts, answers):
        pairs = [[(i, len(x.split()) - 1 - i) for i in range(len(x.split()))] for x in texts]
        return [Alignment(tuple(found), np.zeros([1, 1])) for found in pairs]


def model(name, signature, pipeline=None, **card):
    served = EchoModel(name, n_best=signature)
    served.pipeline, served.card, served.path = pipeline, card, None
    return served


@pytest.fixture(scope="module")
def client():
    models = [
        model("words", Reversed(), ReversedPipeline(), task="translation"),
        model("trees", Trees(), task="parsing"),
        model("languages", Named("text", "source_language", "target_language")),
    ]
    models[-1].languages = {
        "languages": ["eng_Latn", "fr_XX", "zu"], "source_language": "zu",
        "target_language": "fr_XX",
    }  # fmt: skip
    with serving(*models, max_text_bytes=2_000) as client:
        yield client


@pytest.fixture(scope="module")
def browser():
    with chromium() as driver:
        yield driver


@pytest.fixture
def page(browser, client):
    """Opens the page with a model."""

    def open_page(name="words"):
        show(browser, f"http://127.0.0.1:{client.port}/", 1280, "light")
        Select(browser.find_element("id", "model")).select_by_visible_text(name)
        return browser

    return open_page


def answer_to(browser, text, pauses=False):
    """Types a text instead of the one before, and returns the answer."""
    browser.execute_script(
        """
        field.select();
        document.execCommand("insertText", false, arguments[0]);  // as if typed
        if (!arguments[1]) { clearTimeout(timer); ask(); }""",
        text,
        pauses,
    )
    finished = "return panes.ariaBusy === 'false'"
    WebDriverWait(browser, 20, 0.02).until(lambda _: browser.execute_script(finished))
    return browser.find_element("id", "answer").text


def texts(browser, selector):
    return [node.text for node in browser.find_elements("css selector", selector)]


def point_at(browser, node):
    webdriver.ActionChains(browser).move_to_element(node).perform()


def errors(browser):
    return [line["message"] for line in browser.get_log("browser") if line["level"] == "SEVERE"]


def test_a_text_is_answered_after_a_pause(page):
    browser = page()
    assert answer_to(browser, "a red house", pauses=True) == "house red a"
    assert texts(browser, "#list li") == ["house red a\n−0.250", "a red house\n−1.500"]
    assert texts(browser, "h1, dd, #note") == ["Translator", ""]
    assert answer_to(browser, "a") == "a" and texts(browser, "#list li") == ["a\n−0.250"]
    assert answer_to(browser, HOSTILE) == " ".join(HOSTILE.split()[::-1])  # never markup
    assert (
        answer_to(browser, " ") == "" and not browser.find_element("id", "choices").is_displayed()
    )
    assert not errors(browser)


def test_a_sentence_that_is_cut_is_said(page):
    browser = page()
    assert answer_to(browser, "a long house. A cat.") == "house. long a cat. A"
    assert texts(browser, "#problem") == ["A sentence is longer than the model reads, and was cut."]
    answer_to(browser, "a house", pauses=True)
    assert texts(browser, "#problem") == [""]


def test_no_space_stands_between_answers_in_chinese(page):
    browser = page()
    assert answer_to(browser, "你好。他跑。") == "你好。他跑。"
    assert answer_to(browser, "It rains. 他跑。好。") == "rains. It 他跑。好。"
    assert not errors(browser)


def test_languages_are_chosen(page):
    browser = page("languages")
    assert answer_to(browser, "a") == "zu to fr_XX"
    names = ["English (Latin) (eng_Latn)", "French (fr_XX)", "Zulu (zu)"]
    assert texts(browser, "#target_language option") == names
    choice = Select(browser.find_element("id", "target_language"))
    choice.select_by_visible_text(names[0])
    assert answer_to(browser, "a") == "zu to eng_Latn"
    assert not page().find_element("id", "languages").is_displayed() and not errors(browser)


def test_the_answer_to_an_earlier_text_is_dropped(page):
    browser = page()
    answer_to(browser, "a")
    field = browser.find_element("id", "field")
    field.send_keys(" slow text")
    time.sleep(0.45)  # The search has begun.
    assert answer_to(browser, "new text") == "text new"
    time.sleep(0.4)
    assert browser.find_element("id", "answer").text.strip() == "text new"
    assert texts(browser, "#list bdi") == ["text new", "new text"] and not errors(browser)


def test_aligned_words_are_lit_on_both_sides(page):
    browser = page()
    answer_to(browser, "one two three")
    word = browser.find_elements("css selector", "#answer .word")[0]
    point_at(browser, word)
    assert texts(browser, "#answer .lit") == ["three"]
    lit = browser.find_element("css selector", "#mirror .lit")
    assert lit.text == "three"
    point_at(browser, browser.find_element("css selector", "h1"))
    assert not texts(browser, ".lit")


def test_a_tree_is_drawn(page):
    browser = page("trees")
    answer_to(browser, "The dog barks (")
    nodes = {node.text: node.rect for node in browser.find_elements("css selector", ".tree span")}
    leaves = browser.find_elements("css selector", ".tree .leaf")
    assert [leaf.text for leaf in leaves] == ["The", "dog", "barks", "(loud)"]
    ends = [leaf.rect["y"] + leaf.rect["height"] for leaf in leaves]
    assert max(ends) - min(ends) < 1  # on a line
    assert nodes["S"]["y"] < nodes["NP"]["y"] == nodes["VP"]["y"] < nodes["DT"]["y"]
    assert texts(browser, "#list li") == [f"{TREE}\n−0.500"]
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
