"""The live page in a real browser while it changes, and while its dispatcher is away."""

import re

import pytest
from playwright.async_api import expect

from tests.support.fake_board import Actor, FakeBoard, fleet, running
from tests.support.page_scenes import AWAY, row

pytestmark = pytest.mark.asyncio(loop_scope="module")

OLD, NEW = "https://old.example/", "https://new.example/"


async def test_a_dispatcher_that_is_gone_and_comes_back(fake_page, visit):
    actor = Actor("m", time=0.1)
    fake_board = FakeBoard(actor, links={"Runbook": OLD})
    fake_board.past(300)
    theatre = await fake_page(fake_board)
    visitor = await visit(theatre.url, tolerated=AWAY)
    page, banner = visitor.page, visitor.page.locator("#banner")
    line = row(page, "m").locator("path.line")
    await expect(row(page, "m")).to_be_visible()
    await expect(banner).to_be_hidden()
    points = (await line.get_attribute("d")).count("L")
    await theatre.end()
    await expect(banner).to_have_text(
        re.compile(
            r"^The dispatcher does not answer since \d s; what you see is from \d\d:\d\d:\d\d"
        )
    )
    await expect(page.locator("body")).to_have_attribute("data-lost", "")
    await expect(page.locator("#headline")).to_contain_text("Not known since")
    await expect(page.locator("#announcer")).to_have_text("The dispatcher does not answer.")
    # A new process: it remembers nothing, and its roma.yaml has changed.
    fresh = FakeBoard(actor, links={"Runbook": NEW})
    fresh.at = fake_board.at + 5
    await theatre.play(fresh)
    await expect(banner).to_be_hidden()  # a view came: of a board that nobody has looked at yet
    fresh.look()  # the first look, from which counting begins: no models either
    async with running(fresh):
        await expect(page.locator("#headline")).to_have_text("All promises kept")
        actor.time = 0.2
        await expect(row(page, "m").locator("td.time")).to_contain_text("200 ms")
    await expect(page.get_by_role("link", name="Runbook")).to_have_attribute("href", NEW)
    assert (await line.get_attribute("d")).count("L") >= points - 5  # the page remembers


async def test_a_dispatcher_that_refuses_streams_is_asked_again_and_again(fake_page, visit):
    fake_board = FakeBoard(Actor("m", time=0.1))
    fake_board.past(10)
    theatre = await fake_page(fake_board)
    theatre.refusing = True
    page = (await visit(theatre.url, tolerated=AWAY)).page
    await expect(page.locator("#banner")).to_contain_text("refuses another live stream")
    fake_board.actors["m"].time = 0.3
    fake_board.look()
    await expect(row(page, "m").locator("td.time")).to_contain_text("300 ms")
    theatre.refusing = False
    await expect(page.locator("#banner")).to_be_hidden()
    await expect(page.locator("#clock")).to_have_attribute("data-state", "live")


async def test_only_changes_of_state_are_announced(fake_page, visit):
    actor = Actor("m", time=0.1)
    fake_board = FakeBoard(actor)
    fake_board.past(20)
    page = (await visit((await fake_page(fake_board)).url)).page
    await expect(row(page, "m")).to_be_visible()
    said = page.locator("#announcer")
    actor.time = 0.12
    fake_board.look(3)
    await expect(row(page, "m").locator("td.time")).to_contain_text("120 ms")
    await expect(said).to_have_text("")
    actor.time = 0.9
    fake_board.look()
    await expect(said).to_have_text(re.compile("^m: Late, 900 ms of 500 ms"))


async def test_a_look_changes_texts_and_paths_and_makes_no_row_anew(fake_page, visit):
    fake_board = fleet(50)
    fake_board.past(20)
    page = (await visit((await fake_page(fake_board)).url)).page
    await expect(page.locator("tbody tr")).to_have_count(50)
    clock = await page.locator("#clock").inner_text()
    await page.evaluate("""() => {
        window.added = 0;
        new MutationObserver((changes) => {
            for (const change of changes) {
                window.added += [...change.addedNodes].filter((n) => n.nodeType === 1).length;
            }
        }).observe(document.querySelector('tbody'), { childList: true, subtree: true });
    }""")
    fake_board.look(5)
    await expect(page.locator("#clock")).not_to_have_text(clock)
    # Ticks under a sparkline come and go with broken promises; 50 rows have hundreds of elements.
    assert await page.evaluate("window.added") < 50


async def test_what_does_not_change_is_not_written(fake_page, visit):
    fake_board = FakeBoard(Actor("moves"), Actor("rests"))
    fake_board.past(200)
    page = (await visit((await fake_page(fake_board)).url)).page
    await expect(row(page, "rests")).to_be_visible()
    await page.evaluate("""() => {
        window.written = [];
        new MutationObserver((all) => window.written.push(...all.map((one) => {
            const node = one.target.nodeType === 1 ? one.target : one.target.parentElement;
            return `${node.closest('tr').querySelector('a').textContent} ${node.getAttribute('class')}`;
        }))).observe(document.querySelector('tbody'), {
            subtree: true, childList: true, attributes: true, characterData: true,
        });
    }""")
    fake_board.actors["moves"].rate = 22
    fake_board.look()
    await expect(row(page, "moves").locator("td.rate")).to_contain_text("22")
    written = await page.evaluate("window.written")
    assert any(text.startswith("moves value") for text in written)
    # Time passes for all: only the pictures of the last minutes may move.
    assert {t for t in written if t.startswith("rests")} <= {
        "rests line",
        "rests above",
        "rests ticks",
    }


async def test_a_dispatcher_that_has_just_started_is_waited_for(fake_page, visit):
    fake_board = FakeBoard(Actor("m", rate=0, time=None))
    page = (await visit((await fake_page(fake_board)).url)).page
    await expect(page.locator("#headline")).to_have_text("Waiting for the first look at the models")
    await expect(page.get_by_text("No model is served yet")).to_be_visible()
    fake_board.look()
    await expect(row(page, "m").locator(".why")).to_have_text("no request yet")
    await expect(page.locator("#headline")).to_have_text("No requests now")
