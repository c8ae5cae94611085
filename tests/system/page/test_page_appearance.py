"""The live page in a real browser: widths, themes and accessibility."""

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import expect

from tests.support.fake_board import Actor, FakeBoard
from tests.support.page_scenes import LATE, crowd, row

pytestmark = pytest.mark.asyncio(loop_scope="module")
OVERLAPS = """() => {
  const shown = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = texts.nextNode());) {
    const holder = node.parentElement;
    if (!node.data.trim() || !holder.checkVisibility() || holder.closest('.skip')) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      let { left, top, right, bottom } = box;
      for (let e = holder; e; e = e.parentElement) {
        const style = getComputedStyle(e);
        if (style.clipPath !== 'none') right = left;
        if (style.overflow === 'visible') continue;
        const edge = e.getBoundingClientRect();
        [left, right] = [Math.max(left, edge.left), Math.min(right, edge.right)];
        [top, bottom] = [Math.max(top, edge.top), Math.min(bottom, edge.bottom)];
      }
      if (right > left && bottom > top) shown.push({ node, left, top, right, bottom });
    }
  }
  const found = [];
  shown.forEach((a, i) => shown.slice(i + 1).forEach((b) => {
    const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    // Line boxes are a little higher than what is written in them.
    if (a.node !== b.node && width > 1 && height > 4) found.push([a.node.data, b.node.data]);
  }));
  return found;
}"""


@pytest.mark.parametrize("width", [1920, 1440, 1361, 1280, 1185, 1100, 760, 390])
async def test_no_text_stands_on_another(fake_page, visit, width):
    fake_board = crowd()
    fake_board.actors["busy"].waiting, fake_board.actors["busy"].oldest = 12_345, 99.9
    fake_board.actors["calm"].aim = 0.9
    fake_board.actors[
        "calm"
    ].time = 2.0  # the scale of its chart is four times the SLA: labels are near
    fake_board.look()
    url = (await fake_page(fake_board)).url
    for address in (url, f"{url}/#model=busy", f"{url}/#model=calm"):
        page = (await visit(address, viewport={"width": width, "height": 3000})).page
        await expect(page.locator("#headline")).to_contain_text("late")
        if "#" in address:
            await expect(page.locator(".levels text.sla")).to_be_visible()
        assert await page.evaluate(OVERLAPS) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_serious_fault_of_accessibility(fake_page, visit, scheme):
    fake_board = crowd()
    fake_board.decide("busy", 0.9, ago=1)
    fake_board.decide("busy", 0.5, before=0.9)
    fake_board.refuse("busy", 2)
    url = (await fake_page(fake_board)).url
    for address, width in ((url, 1440), (url, 390), (f"{url}/#model=busy", 1440)):
        visitor = await visit(
            address, color_scheme=scheme, viewport={"width": width, "height": 800}
        )
        page = visitor.page
        if "#" in address:
            await expect(page.locator(".decisions > li")).to_have_count(3)
            await page.locator(".decisions summary").first.click()
        else:
            await expect(row(page, "busy")).to_be_visible()
        found = (await Axe().run(page)).response["violations"]
        faults = {
            f["id"]: [node["html"] for node in f["nodes"]]
            for f in found
            if f["impact"] in ("serious", "critical")
        }
        assert faults == {}


async def test_the_theme_is_remembered(fake_page, visit):
    page = (await visit((await fake_page(FakeBoard(Actor("m")))).url, color_scheme="light")).page
    deployment = "getComputedStyle(document.documentElement).backgroundColor"
    light = await page.evaluate(deployment)
    button = page.get_by_role("button", name="Theme")
    await button.click()
    await button.click()
    await expect(button).to_have_text("Theme: dark")
    assert await page.evaluate(deployment) != light
    await page.reload()
    await expect(button).to_have_text("Theme: dark")
    assert await page.evaluate(deployment) != light
    await button.click()
    assert await page.evaluate(deployment) == light


async def test_nothing_sticks_out_at_any_width(fake_page, visit):
    long = "a_model_with_a_very_long_name_" * 4
    names = ["Grafana", "Traces", "Deployment", "Runbook of the team that is on call", "x" * 60]
    links = dict.fromkeys(names, "https://links.example")
    fake_board = FakeBoard(Actor(long, **LATE), Actor("m"), links=links)
    fake_board.past(30)
    fake_board.decide(long, 0.5)
    page = (await visit((await fake_page(fake_board)).url)).page
    shown = row(page, long)
    for place in (shown, page.locator(".decisions .words")):
        await expect(place).to_be_visible()
        for width in (360, 600, 800, 1021, 1101, 1440, 2200):
            await page.set_viewport_size({"width": width, "height": 800})
            root = "document.documentElement"
            assert await page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0, width
        if place is shown:
            await row(page, long).locator("a").click()


async def test_nothing_moves_for_those_who_asked_for_that(fake_page, visit):
    page = (await visit((await fake_page(FakeBoard(Actor("m")))).url, reduced_motion="reduce")).page
    await expect(page.locator("#clock")).to_have_attribute("data-state", "live")
    motion = "getComputedStyle(document.querySelector('#clock'), '::before').animationName"
    assert await page.evaluate(motion) == "none"
