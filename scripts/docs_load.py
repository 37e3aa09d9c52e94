"""How large the site is and how fast its pages load: python scripts/docs_load.py SITE > docs/results/site.md

SITE is what `make docs` wrote. It is served on loopback, and chromium loads each page several times without a cache.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "report"))

from browser import Browser, browser

PAGES = ("index", "start", "which-method", "tutorials/compare", "methods/fedah", "results/league", "reference/settings")
TIMES = 5
MEASURED = """
const page = performance.getEntriesByType("navigation")[0], rest = performance.getEntriesByType("resource")
return [page.domContentLoadedEventEnd, page.loadEventEnd, 1 + rest.length,
        [page, ...rest].reduce((sum, each) => sum + (each.name.includes("search_index") ? 0 : each.encodedBodySize), 0)]
"""
INTRO = """# The site's size and load time

`make docs && python scripts/docs_load.py site > docs/results/site.md` writes this page. Headless chromium loads each
page {times} times at phone width, without a cache or compression, from a server on the same machine: the figures are
medians, and say what the browser has to do, not what a network adds. Nothing is loaded from elsewhere.

The site has {pages} pages and {files} files of {size:.1f} MB in all. KB leave out the index of the search
({index:,.0f} KB), which is fetched beside the page. The machine has {cores} cores, and {load:.0f} processes wanted
them meanwhile.

| page | requests | KB | DOM ready ms | loaded ms |
|---|---:|---:|---:|---:|"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing: stdout is the page."""


def load(tab: Browser, address: str) -> list[float]:
    tab.driver.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
    tab.open(address, width=390)
    tab.wait("return performance.getEntriesByType('navigation')[0].loadEventEnd > 0")
    return tab.js(MEASURED)


def main(folder: Path) -> None:
    files = [p for p in folder.rglob("*") if p.is_file()]
    size, pages = sum(p.stat().st_size for p in files) / 1e6, sum(p.suffix == ".html" for p in files)
    index = (folder / "search" / "search_index.json").stat().st_size / 1000
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(
        INTRO.format(
            times=TIMES,
            pages=pages,
            files=len(files),
            size=size,
            index=index,
            cores=os.cpu_count(),
            load=os.getloadavg()[0],
        )
    )
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as tab:
        for page in PAGES:
            address = f"http://127.0.0.1:{server.server_port}/{page}.html"
            ready, loaded, requests, bytes_ = (
                median(c) for c in zip(*(load(tab, address) for _ in range(TIMES)), strict=True)
            )
            print(f"| {page} | {requests:.0f} | {bytes_ / 1000:,.0f} | {ready:.0f} | {loaded:.0f} |")
    server.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
