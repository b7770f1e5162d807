"""The report page in a real browser: no errors, no network, and everything on it works."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gelato.report.page.records import Comparison
from gelato.report.page.render.page import render_page
from tests.report.page_example import POINTS, make_example, make_map

pytestmark = pytest.mark.integration
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")
    if BROWSER is None:
        pytest.skip("no browser: install the system package `chromium`")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render_page(make_example()), "utf-8")
    return path


class Visit:
    """An open page, with everything that it wrote to the console or asked the network for."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        size = {"width": options.pop("width", 1280), "height": 900}
        self.context = browser.new_context(viewport=size, **options)
        self.page = self.context.new_page()
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())

    def draw(self, name: str) -> Any:
        """Scroll to a figure, and return it once it is drawn."""
        plot = self.page.locator(f"[data-figure={name}]").first
        plot.scroll_into_view_if_needed()
        self.page.wait_for_selector(f"[data-figure={name}][data-drawn=yes] .main-svg")
        return plot

    def draw_all(self) -> None:
        """Draw every figure."""
        names = self.page.eval_on_selector_all(
            "[data-figure]", "plots => plots.map(plot => plot.dataset.figure)"
        )
        for name in dict.fromkeys(names):
            self.draw(name)


@pytest.fixture
def visit(browser, file) -> Iterator[Visit]:
    found = Visit(browser, file)
    yield found
    found.context.close()


def place_of(visit: Visit, point: int) -> tuple[float, float]:
    """Return where a point of the map is in the window."""
    return tuple(
        visit.page.evaluate(
            """point => {
                const plot = document.querySelector("[data-figure=map]");
                const box = plot.getBoundingClientRect(), { xaxis, yaxis } = plot._fullLayout;
                const trace = plot.data[0];
                const at = trace.customdata.findIndex((each) => each[3] === point);
                return [
                    box.left + xaxis._offset + xaxis.d2p(trace.x[at]),
                    box.top + yaxis._offset + yaxis.d2p(trace.y[at]),
                ];
            }""",
            point,
        )
    )


def test_the_page_draws_all_figures_without_errors_and_without_the_network(visit):
    visit.draw_all()
    assert visit.page.locator("[data-drawn=yes]").count() == 12
    assert visit.messages == []
    assert [url for url in visit.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_a_click_on_a_point_shows_its_step_and_its_neighbours(visit):
    visit.draw("map")
    # The rightmost point: no other one lies over it.
    point = int(np.argmax(make_map().points["x"]))
    place, after = divmod(point, 30), divmod(point + 1, 30)
    visit.page.mouse.click(*place_of(visit, point))
    panel = visit.page.locator("[data-control=point-panel]")
    panel.get_by_role("heading", name=f"Episode {place[0]}, step {place[1]}").wait_for()
    text = panel.inner_text()
    assert "trusted" in text and "state[0]" in text and "action[0]" in text
    assert f"episode {after[0]}, step {after[1]} – 0.1" in text
    panel.get_by_role("button", name=f"episode {after[0]}, step {after[1]}").click()
    panel.get_by_role("heading", name=f"Episode {after[0]}, step {after[1]}").wait_for()


def test_a_lasso_summarises_a_region(visit):
    plot = visit.draw("map")
    visit.page.get_by_role("button", name="Select a region").click()
    box = plot.locator(".nsewdrag").first.bounding_box()
    corners = [(0.02, 0.02), (0.98, 0.02), (0.98, 0.98), (0.02, 0.98), (0.02, 0.03)]
    spots = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in corners]
    visit.page.mouse.move(*spots[0])
    visit.page.mouse.down()
    for spot in spots[1:]:
        visit.page.mouse.move(*spot, steps=8)
    visit.page.mouse.up()
    region = visit.page.locator("[data-control=region-panel]")
    region.get_by_text("Selected region").wait_for()
    facts = region.inner_text().split("\n")
    assert int(facts[facts.index("steps") + 1]) > 0.8 * POINTS
    assert {"mean return", "mean penalty U", "trusted"} <= set(facts)
    visit.page.get_by_role("button", name="Reset").click()
    assert region.inner_text() == ""
    # A step outside of the lasso is drawn like all others again.
    assert plot.evaluate("plot => plot._fullData[0].selectedpoints") is None


def test_the_slider_shows_false_alarms_and_misses(visit):
    visit.draw("threshold")
    slider = visit.page.locator("[data-control=threshold]")
    result = visit.page.locator("[data-control=threshold-result]")
    at_limit = result.inner_text()
    slider.fill("0")
    assert result.inner_text() == "U ≤ 0: false alarms 100%, misses 0%"
    visit.page.get_by_role("button", name="Back to the limit").click()
    assert result.inner_text() == at_limit


def test_the_map_can_be_coloured_and_shown_by_state_columns(visit):
    plot = visit.draw("map")
    visit.page.get_by_label("Colour").select_option("error")
    visit.page.get_by_label("View").select_option("columns")
    title = plot.locator(".g-xtitle text")
    assert title.text_content() == "state[0]"
    visit.page.get_by_role("checkbox", name="paths of the policy").check()
    assert visit.page.evaluate("document.querySelector('[data-figure=map]').data.length") == 4


def test_the_theme_follows_the_system_and_the_button_and_is_kept(browser, file):
    dark = Visit(browser, file, color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    before = dark.page.evaluate(background)
    assert before == "rgb(16, 21, 20)"
    dark.page.get_by_role("button", name="Switch between light and dark").click()
    light = dark.page.evaluate(background)
    assert light == "rgb(251, 251, 249)"
    dark.page.reload()
    assert dark.page.evaluate(background) == light
    dark.context.close()


def test_the_printed_page_is_light_and_has_every_figure(browser, file):
    visit = Visit(browser, file, color_scheme="dark")
    visit.page.emulate_media(media="print")
    visit.page.wait_for_function("document.querySelectorAll('[data-drawn=yes]').length === 12")
    ink = visit.page.evaluate("getComputedStyle(document.body).color")
    assert ink == "rgb(23, 32, 31)"
    assert not visit.page.locator(".controls").first.is_visible()
    assert visit.page.pdf().startswith(b"%PDF")
    visit.page.emulate_media(media="screen")
    assert visit.page.evaluate("getComputedStyle(document.body).color") == "rgb(232, 237, 235)"
    visit.context.close()


def test_the_keyboard_reaches_the_content_the_points_and_the_slider(visit):
    visit.page.keyboard.press("Tab")
    assert visit.page.evaluate("document.activeElement.textContent") == "Skip to the content"
    visit.page.keyboard.press("Enter")
    assert visit.page.evaluate("document.activeElement.id") == "content"
    plot = visit.draw("map")
    plot.focus()
    visit.page.keyboard.press("ArrowRight")
    visit.page.keyboard.press("ArrowRight")
    visit.page.get_by_text("Episode 0, step 1", exact=True).wait_for()
    first = visit.page.locator("[data-point]").first
    first.focus()
    visit.page.keyboard.press("Enter")
    label = first.inner_text()
    visit.page.get_by_role("heading", name=label).wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser, file, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs `browser`")
    visit = Visit(browser, file, color_scheme=scheme)
    visit.draw_all()
    found = axe.Axe().run(visit.page).response["violations"]
    serious = [
        (each["id"], each["nodes"][0]["html"])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []
    visit.context.close()


def test_a_phone_needs_no_sideways_scrolling(browser, file):
    visit = Visit(browser, file, width=390)
    visit.draw_all()
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 390
    assert visit.messages == []
    visit.context.close()


def test_names_with_html_stay_text(browser, tmp_path):
    hostile = '<img src=x onerror="document.title=1">'
    example = make_example(name=hostile, dataset=hostile, environment=hostile)
    policies = replace(
        example.policies,
        curves=tuple({**curve, "method": hostile} for curve in example.policies.curves),
        policies=tuple({**policy, "method": hostile} for policy in example.policies.policies),
    )
    example = replace(
        example, policies=policies, map=replace(example.map, state_names=(hostile, hostile))
    )
    file = tmp_path / "hostile.html"
    file.write_text(render_page(example), "utf-8")
    visit = Visit(browser, file)
    visit.draw_all()
    assert visit.page.locator("img").count() == 0
    assert hostile in visit.page.title()
    assert visit.messages == []
    visit.context.close()


def test_a_page_with_nothing_but_a_run_says_what_is_missing(browser, tmp_path):
    bare = make_example(
        data=None,
        model=None,
        map=None,
        paths=None,
        policies=None,
        trust=None,
        missing={"data": "The data is gone."},
    )
    file = tmp_path / "bare.html"
    file.write_text(render_page(bare), "utf-8")
    visit = Visit(browser, file)
    assert "The data is gone." in visit.page.inner_text("#data")
    assert visit.messages == []
    visit.context.close()


def test_a_comparison_shows_the_runs_side_by_side(browser, tmp_path):
    runs = (make_example(name="first"), make_example(name="second"))
    light = tuple(replace(run, model=None, map=None, paths=None, trust=None) for run in runs)
    file = tmp_path / "compare.html"
    file.write_text(render_page(Comparison(light, (("seeds", "2", "3"),), True)), "utf-8")
    visit = Visit(browser, file)
    visit.draw_all()
    assert visit.page.locator("[data-drawn=yes]").count() == 2
    assert "first" in visit.page.inner_text("#verdicts")
    assert visit.messages == []
    visit.context.close()
