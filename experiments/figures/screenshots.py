"""Photograph report pages for the docs, in light and in dark mode.

python experiments/figures/screenshots.py four-rooms=demo/report.html hopper=runs/hopper/report.html

For each page it writes docs/pictures/report-NAME-PART-SCHEME.png. The part `verdict` is the top of
the page; `map` is the map with its least known step selected. It needs the extra `browser` and the
system's Chromium.
"""

import io
import sys
from pathlib import Path
from typing import Any

from PIL import Image

from experiments.benchmarks.report_page import FLAGS

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
_BROWSER = "/usr/bin/chromium"
_WINDOW = {"width": 1280, "height": 960}
# Pages have few colours, so that a palette keeps the files small.
_COLOURS = 256


def photograph(page: Any, name: str, scheme: str) -> None:
    """Write the pictures of one open page."""
    _save(page.screenshot(), f"{name}-verdict-{scheme}")
    plot = page.locator("[data-figure=map]")
    plot.scroll_into_view_if_needed()
    page.wait_for_selector("[data-figure=map][data-drawn=yes] .main-svg")
    if page.locator("[data-control=map-paths]").count():
        page.locator("[data-control=map-paths]").check()
    page.locator("[data-point]").first.click()
    page.locator("#map").evaluate("each => window.scrollTo({ top: each.offsetTop - 20 })")
    page.add_style_tag(content=".bar { position: static !important }")
    page.wait_for_timeout(1000)
    _save(page.locator(".map-grid").screenshot(), f"{name}-map-{scheme}")


def _save(picture: bytes, name: str) -> None:
    with Image.open(io.BytesIO(picture)) as image:
        image.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(
            FOLDER / f"report-{name}.png", optimize=True
        )


def main() -> None:
    """Photograph every page that the command names."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_BROWSER, args=FLAGS)
        for given in sys.argv[1:]:
            name, _, path = given.partition("=")
            for scheme in ("light", "dark"):
                context = browser.new_context(viewport=_WINDOW, color_scheme=scheme)
                page = context.new_page()
                page.goto(Path(path).resolve().as_uri())
                photograph(page, name, scheme)
                context.close()
        browser.close()


if __name__ == "__main__":
    main()
