"""Headless Chromium, driven with selenium; without it, tests that import this are skipped."""

import contextlib
import os
import shutil

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install selenium")
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

__all__ = ["Select", "WebDriverWait", "chromium", "show", "webdriver"]
PROGRAMS = [shutil.which("chromium"), shutil.which("chromedriver")]
if None in PROGRAMS:
    pytest.skip("needs Debian's chromium and chromium-driver", allow_module_level=True)


@contextlib.contextmanager
def chromium():
    """Yields a driver of a browser."""
    options = webdriver.ChromeOptions()
    options.binary_location = PROGRAMS[0]
    options.add_argument("--headless=new")
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # Chromium's sandbox is not for root.
        options.add_argument("--no-sandbox")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(PROGRAMS[1]))
    driver.set_script_timeout(20)
    yield driver
    driver.quit()


def show(driver, address, width=1280, scheme="light"):
    """Opens an address in a window of some size and color scheme."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(address)
