"""The page of attention in Chromium: lines, choices, keyboard."""

import numpy as np
import pytest

from keras_transformer.evaluation import attention_page
from tests.browser import Select, WebDriverWait, chromium, show, webdriver
from tests.evaluation.test_attention import HOSTILE, random_weights

SOURCE = (*(f"▁{letter}{letter}" for letter in "abcdefgh"), *HOSTILE, "</s>")
TARGET = ("▁uu", "vv", "▁ww", "</s>")
WEIGHTS = random_weights(SOURCE, TARGET, num_layers=3, num_heads=4)


@pytest.fixture(scope="module")
def browser():
    with chromium() as driver:
        yield driver


@pytest.fixture
def page(browser, tmp_path):
    """Opens the page."""

    def open_page(**options):
        path = attention_page(WEIGHTS, tmp_path / "page.html", **options)
        show(browser, path.as_uri())
        wait = WebDriverWait(browser, 20)
        wait.until(lambda _: browser.find_elements("css selector", ".piece"))
        return browser

    yield open_page
    assert not [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]


def pieces(browser, side):
    return browser.find_elements("css selector", f"#{side} .piece")


def choose(browser, name, value):
    select = Select(browser.find_element("id", name))
    select.select_by_visible_text(value) if name == "layer" else select.select_by_value(value)
    browser.execute_async_script("setTimeout(arguments[0], 100)")


def reading(browser):
    return browser.find_element("id", "reading").text


def inked(browser):
    """The number of pixels of the canvas that a line has colored."""
    return browser.execute_script("""
        const canvas = document.getElementById("lines"), context = canvas.getContext("2d");
        const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
        return pixels.filter((value, place) => place % 4 === 3 && value > 0).length;""")


def test_a_piece_shows_its_weights_and_only_its_lines(page):
    browser = page(attention="cross", layer=2, head=3, title="<b>$&amp;</script>")
    assert [one.get_attribute("textContent") for one in pieces(browser, "keys")] == list(SOURCE)
    assert browser.title == browser.find_element("id", "title").text == "<b>$&amp;</script>"
    before = inked(browser)
    webdriver.ActionChains(browser).move_to_element(pieces(browser, "queries")[1]).perform()
    weights = WEIGHTS.cross[1, 2, 1]
    best = np.argsort(-weights, kind="stable")[:5]
    shown = [f"“{SOURCE[key]}” {100 * round(255 * weights[key]) / 255:.0f} %" for key in best[:2]]
    assert reading(browser).startswith(f"vv attends to {', '.join(shown)}")
    assert 0 < inked(browser) < before
    webdriver.ActionChains(browser).move_to_element(browser.find_element("id", "title")).perform()
    assert reading(browser).startswith("Point at a piece") and inked(browser) == before


def test_layers_kinds_and_heads_change_the_picture(page):
    browser = page()
    seen = {inked(browser)}
    for layer in ("1", "2"):
        choose(browser, "layer", layer)
        seen.add(inked(browser))
    heads = browser.find_elements("css selector", "#heads input")
    assert len(heads) == 4
    heads[0].click()
    seen.add(inked(browser))
    browser.find_element("id", "none").click()
    assert inked(browser) == 0 and reading(browser) == "Choose at least one head."
    choose(browser, "attention", "decoder")
    assert [one.text for one in pieces(browser, "keys")] == ["<s>", *TARGET[:-1]]
    assert len(seen) == 4


def test_the_keyboard_reaches_everything(page):
    browser, keys = page(), webdriver.Keys

    def press(*names):
        actions = webdriver.ActionChains(browser)
        for name in names:
            actions.send_keys(getattr(keys, name))
        actions.perform()
        return browser.switch_to.active_element

    reached = [press("TAB").get_attribute("id") for _ in range(8)]
    assert reached == ["attention", "layer", "", "", "", "", "all", "none"]
    first = press("TAB")
    assert first == pieces(browser, "queries")[0] and reading(browser).startswith("▁uu attends")
    assert press("ARROW_DOWN", "ARROW_DOWN").text == "▁ww"
    assert press("ARROW_RIGHT").text == SOURCE[2]
    assert press("END").text == "</s>" and press("HOME").text == SOURCE[0]
    pinned = press("ENTER")
    assert pinned.get_attribute("aria-pressed") == "true"
    assert press("ESCAPE").get_attribute("aria-pressed") == "false"
    assert reading(browser).startswith("Point at a piece")
