"""A real browser for the tests, driven by selenium."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from waiting import PATIENCE

MISSING = next(
    (
        f"there is no {name}: apt-get install chromium chromium-driver"
        for name in ("chromium", "chromedriver")
        if not shutil.which(name)
    ),
    None,
)
AXE = Path(__file__).parent / "vendor" / "axe.min.js"


class Browser:
    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str | Path, *, width: int = 1440, theme: str = "light", height: int = 900) -> None:
        """Open a page, or a file from disk."""
        driver = self.driver
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        driver.get("about:blank")
        driver.get(address.resolve().as_uri() if isinstance(address, Path) else address)
        self.wait("return document.readyState === 'complete' && location.href !== 'about:blank'")  # get may be early

    def js(self, code: str, *args: Any) -> Any:
        return self.driver.execute_script(code, *args)

    def wait(self, code: str) -> Any:
        """Wait until the script returns something truthy, and return that."""
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, PATIENCE, poll_frequency=0.05).until(lambda d: d.execute_script(code))

    def draw_everything(self) -> None:
        """Draw all charts, including those not yet scrolled to."""
        self.js("Object.keys(charts).forEach(draw)")

    def complaints(self) -> list[str]:
        """Console messages since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Network requests since the last call; files from disk do not count."""
        entries = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [m["params"]["request"]["url"] for m in entries if m["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(("file:", "data:", "chrome"))]

    def violations(self) -> list[str]:
        """Accessibility violations that axe-core rates serious or worse."""
        self.js(AXE.read_text(encoding="utf-8"))
        code = "const done = arguments[0]; axe.run(document, {resultTypes: ['violations']}).then(done)"
        violations = self.driver.execute_async_script(code)["violations"]
        bad = [v for v in violations if v["impact"] in ("serious", "critical")]
        return [f"{v['id']}: {v['help']}: {[n['html'][:200] for n in v['nodes'][:3]]}" for v in bad]


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a fresh profile."""
    if MISSING:
        pytest.skip(MISSING)
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install selenium")
    from selenium.webdriver.chrome.service import Service

    options = selenium.ChromeOptions()
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    for flag in ("--headless=new", "--disable-dev-shm-usage", f"--user-data-dir={folder}", *sandbox):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_script_timeout(PATIENCE)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
