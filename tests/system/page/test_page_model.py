"""The page of one model in a real browser: decisions in words, and the chart."""

import re

import pytest
from playwright.async_api import expect

from tests.support.fake_board import Actor, FakeBoard
from tests.support.page_scenes import AWAY, row

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_decisions_are_told_in_words(fake_page, visit):
    fake_board = FakeBoard(Actor("m"), Actor("other"))
    fake_board.past(120)
    fake_board.decide("other", 0.3)
    older = fake_board.decide("m", 0.9, before=0.4, ago=20)
    latest = fake_board.decide("m", 0.5, before=0.9, ago=1)
    fake_board.refuse("m", 3)
    page = (await visit((await fake_page(fake_board)).url)).page
    await row(page, "m").click()
    await expect(page).to_have_url(re.compile("#model=m$"))
    items = page.locator(".decisions > li")
    await expect(items).to_have_count(3)
    await expect(items.nth(0)).to_contain_text("3 refusals")
    await expect(items.nth(0)).to_contain_text("predicted late")
    await expect(items.nth(1).locator(".words")).to_have_text(latest)
    await expect(items.nth(1).locator(".move")).to_have_text("▼ 0.900 → 0.500")
    await expect(items.nth(2).locator(".words")).to_have_text(older)
    assert "It needs 0.900 cores = +0.950 load -0.050 integral" in older
    await items.nth(1).locator("summary").click()
    for text in ("load+0.550", "integral−0.050", "set point0.25", "capacity8"):
        await expect(items.nth(1)).to_contain_text(text)
    await expect(page.locator(".latest .terms")).to_contain_text("demand0.500")

    fake_board.look()
    newest = fake_board.decide("m", 0.51, before=0.5)
    await expect(items.nth(0).locator(".words")).to_have_text(newest)
    await expect(items).to_have_count(4)  # what was told twice is shown once
    await page.get_by_label("only changes and refusals").check()
    fake_board.look()
    fake_board.decide("m", 0.513, before=0.51)
    await expect(page.locator(".latest .terms")).to_contain_text("demand0.513")
    await expect(items).to_have_count(4)
    await page.keyboard.press("?")  # a box has the focus in which nothing is typed
    await expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.get_by_label("only changes and refusals").uncheck()
    await expect(items).to_have_count(5)


async def test_the_latest_demand_is_none_of_a_replica_that_is_gone(fake_page, visit):
    fake_board = FakeBoard(Actor("m"))
    fake_board.past(30)
    fake_board.decide("m", 0.6, ago=20)
    fake_board.decided[-1]["executable"] = "m@gone"
    fake_board.decide("m", 0.5, ago=1)
    page = (await visit((await fake_page(fake_board)).url + "/#model=m")).page
    await expect(page.locator(".decisions > li")).to_have_count(2)
    await expect(page.locator(".latest h3")).to_have_text(re.compile("^m@local, "))


async def test_a_worker_that_does_not_tell_is_named(fake_page, visit):
    fake_board = FakeBoard(Actor("m"))
    fake_board.past(10)
    fake_board.silent = {"local": "no answer within 0.5 s"}
    page = (await visit((await fake_page(fake_board)).url + "/#model=m")).page
    note = page.get_by_text("Decisions of worker local are missing: no answer within 0.5 s.")
    await expect(note).to_be_visible()
    fake_board.silent = {}
    fake_board.decide("m", 0.5)
    await expect(note).to_be_hidden()
    await expect(page.locator(".decisions .words")).to_contain_text("requests arrived")


async def test_back_escape_and_links(fake_page, visit):
    fake_board = FakeBoard(Actor("m"), Actor("a model/with % signs"))
    fake_board.past(30)
    url = (await fake_page(fake_board)).url
    page = (await visit(url)).page
    overview, detail = page.locator("#overview"), page.locator("#detail")
    await page.get_by_role("link", name="a model/with % signs").press("Enter")
    await expect(detail.get_by_role("heading", level=1)).to_have_text("a model/with % signs")
    await expect(detail.get_by_role("heading", level=1)).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(overview).to_be_visible()
    await expect(page.get_by_role("link", name="a model/with % signs")).to_be_focused()
    await row(page, "m").click()
    await expect(detail).to_be_visible()
    await page.go_back()
    await expect(overview).to_be_visible()
    await page.go_forward()
    await expect(detail.get_by_role("heading", level=1)).to_have_text("m")
    await page.keyboard.press("Escape")
    await expect(overview).to_be_visible()
    linked = (await visit(f"{url}/#model=a%20model%2Fwith%20%25%20signs")).page
    await expect(linked.locator("#detail h1")).to_have_text("a model/with % signs")
    await expect(linked.locator(".facts")).to_contain_text("100 ms p95")
    await linked.keyboard.press("Escape")
    await expect(linked.locator("#overview")).to_be_visible()


async def test_an_address_may_have_the_password(fake_page, visit):
    fake_board = FakeBoard(Actor("m"))
    fake_board.past(100)
    fake_board.decide("m", 0.6, ago=2)
    url = (await fake_page(fake_board)).url
    page = await (await visit(url)).page.context.new_page()
    await page.goto(f"{url.replace('//', '//any:password@')}/#model=m")
    await expect(page.locator(".decisions > li")).to_have_count(1)
    await expect(page.locator(".decisions .words")).to_contain_text("requests arrived")
    drawn = page.locator(".chart g > path.main").first
    await expect(drawn).to_have_attribute("d", re.compile("(?:L[^L]*){90}"))


async def test_a_model_that_is_not_served_is_said(fake_page, visit):
    fake_board = FakeBoard(Actor("m"))
    fake_board.past(10)
    url = (await fake_page(fake_board)).url
    page = (await visit(f"{url}/#model=nobody", tolerated=AWAY)).page
    await expect(page.get_by_text("No model of this name is served.")).to_be_visible()
    await page.get_by_role("link", name="← All models").click()
    await expect(row(page, "m")).to_be_visible()


async def test_the_crosshair_tells_values_by_mouse_and_by_keyboard(fake_page, visit):
    actor = Actor("m", time=0.1)
    fake_board = FakeBoard(actor)
    fake_board.past(100)
    actor.time = 0.4
    fake_board.look(100)
    page = (await visit((await fake_page(fake_board)).url + "/#model=m")).page
    chart = page.get_by_role("slider", name="Response time, crosshair")
    await expect(chart).to_have_attribute(
        "aria-valuetext", re.compile("now: .*response time 400 ms")
    )
    await expect(page.locator(".chart .levels text.sla").first).to_have_text("SLA for 95 % 500 ms")
    drawn = page.locator(".chart g > path.main").first
    await expect(drawn).to_have_attribute("d", re.compile("(?:L[^L]*){100}"))
    await chart.focus()
    await page.keyboard.press("PageDown")
    await page.keyboard.press("PageDown")
    await page.keyboard.press("ArrowLeft")
    await expect(chart).to_have_attribute(
        "aria-valuetext", re.compile(r"^\d\d:\d\d:\d\d: .*100 ms")
    )
    cores = page.get_by_role("slider", name="Cores, crosshair")
    await expect(cores).to_have_attribute(
        "aria-valuetext", re.compile(r"^\d\d:\d\d:\d\d: .*applied 0.40")
    )
    await page.keyboard.press("Escape")
    await expect(chart).to_have_attribute("aria-valuetext", re.compile("now: "))
    await expect(page.locator("#detail")).to_be_visible()
    box = await chart.bounding_box()
    await page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 40)
    await expect(chart).to_have_attribute(
        "aria-valuetext", re.compile(r"^\d\d:\d\d:\d\d: .*400 ms")
    )
    await page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 40)
    await expect(chart).to_have_attribute(
        "aria-valuetext", re.compile(r"^\d\d:\d\d:\d\d: .*100 ms")
    )


async def test_on_a_phone_decisions_are_folded_until_they_are_asked_for(fake_page, visit):
    fake_board = FakeBoard(Actor("m"))
    fake_board.past(30)
    fake_board.decide("m", 0.6, ago=2)
    url = f"{(await fake_page(fake_board)).url}#model=m"
    phone = (await visit(url, viewport={"width": 390, "height": 844})).page
    await expect(phone.locator("ol.decisions")).to_be_hidden()
    await phone.set_viewport_size({"width": 844, "height": 390})  # it lies on its side
    await phone.get_by_text("All of them").click()
    await expect(phone.locator("ol.decisions li").first).to_be_visible()
    desk = (await visit(url)).page
    await expect(desk.locator("ol.decisions li").first).to_be_visible()
