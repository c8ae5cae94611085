"""The live page in a real browser, over scenes of all that can happen."""

import re
from dataclasses import replace

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import expect

from roma.domain.model import Device
from roma.ui.dashboard.rows import Worker
from tests.support.fake_board import WORKER, Actor, FakeBoard, fleet, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

AWAY = ("Failed to load resource", "net::ERR")
"""What Chromium itself says when a server is gone."""

SHORT = {"limit": "worker_short", "demand": 2.0, "allocation": 0.9, "applied": 0.9, "used": 0.88}
LATE = {"time": 0.9, "late": 10, "waiting": 40, "oldest": 1.3, "cores": SHORT}
HOSTILE = "<img src=x onerror=document.title='owned'> Permission denied"


def crowd():
    """A scene in which everything is wrong at once."""
    fake_board = FakeBoard(
        Actor("calm"),
        Actor("busy", **LATE),
        Actor("gone", executor="lost"),
        Actor("starting", executor="loading"),
        Actor("far-away", worker="far"),
        Actor("watched", worker="watch", time=0.8),
        Actor("rehearsed", worker="dry"),
        Actor("unused", rate=0, time=None),
        Actor("close", time=0.4),
        Actor("stuck", time=0.7, cores={"limit": "failure", "failure": HOSTILE}),
        workers=(
            replace(WORKER, capacity=1.5),
            Worker("far", "http://far", False, 34.0, "no answer within 0.5 s"),
            Worker("watch", "http://watch", True, mode="observe-only: no rights", capacity=4.0),
            Worker("dry", "http://dry", True, mode="dry-run", capacity=4.0),
        ),
    )
    fake_board.past(120)
    return fake_board


def row(page, model):
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=model, exact=True))


async def order(page):
    return await page.locator("tbody a.name").all_text_contents()


async def test_a_late_model_is_on_top_and_says_why(fake_page, visit):
    fake_board = FakeBoard(
        Actor("calm"), Actor("busy", **LATE), workers=(replace(WORKER, capacity=1.3),)
    )
    fake_board.past(60)
    page = (await visit((await fake_page(fake_board)).url)).page
    await expect(page.locator("#headline")).to_have_text(
        "1 of 2 models is late, worker local is short of cores"
    )
    await expect(page).to_have_title("1 late · scene · ROMA")
    busy = row(page, "busy")
    await expect(busy.locator(".state")).to_have_text("Late")
    await expect(busy.locator(".why")).to_have_text(
        "40 wait, the oldest for 1300 ms: worker local is short, 2.40 of 1.30 cores demanded: "
        "it gets 0.90 of 2.00"
    )
    await expect(busy.locator("td.time")).to_contain_text("900 ms")
    await expect(busy.locator("td.time")).to_contain_text("of 500 ms for 95 %")
    await expect(busy.locator("td.late")).to_contain_text("50 %")
    await expect(busy.locator("td.queue")).to_contain_text("oldest 1.30 s")
    await expect(busy.locator("td.cores .stage")).to_have_text(
        ["demanded2.00", "allocated0.90", "applied0.90", "used0.88"]
    )
    assert await order(page) == ["busy", "calm"]


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


async def test_gpus_have_a_column_where_there_are_some(fake_page, visit):
    fake_board = FakeBoard(Actor("m"))
    fake_board.past(10)
    page = (await visit((await fake_page(fake_board)).url)).page
    await expect(row(page, "m").locator("td.queue")).to_be_visible()
    await expect(row(page, "m").locator("td.gpu")).to_be_hidden()
    await row(page, "m").click()
    fact = page.locator(".facts div", has_text="On GPU")
    await expect(fact).to_be_hidden()
    fake_board.actors["m"].device = Device.GPU
    fake_board.actors["m"].on_gpu = 5
    fake_board.look()
    await expect(fact).to_be_visible()
    await expect(fact).to_contain_text("25 %")
    await page.keyboard.press("Escape")
    await expect(row(page, "m").locator("td.gpu")).to_contain_text("25 %")


async def test_until_a_first_answer_the_age_of_the_oldest_request_is_shown(fake_page, visit):
    fake_board = FakeBoard(
        Actor("m", time=None, rate=1, waiting=3, oldest=0.4), Actor("n", time=None, rate=0)
    )
    fake_board.past(10)
    page = (await visit((await fake_page(fake_board)).url)).page
    await expect(row(page, "m").locator("td.time .value")).to_have_text("> 400 ms")
    await expect(row(page, "n").locator("td.time .value")).to_have_text("–")
    fake_board.actors["m"].time = 0.3
    fake_board.look()
    await expect(row(page, "m").locator("td.time .value")).to_have_text("300 ms")


async def test_others_on_the_host_and_what_nothing_controls_have_words_of_their_own(
    fake_page, visit
):
    why = "others use 1.75 of its host's 2 CPUs"
    taken = {"limit": "contended", "contention": why}
    loose = "observe-only: no rights"
    fake_board = FakeBoard(
        Actor("m", time=0.9, cores=taken, worker="taken"),
        Actor(
            "n", executor="loading", reason="n@loose cannot run here: no such file", worker="loose"
        ),
        workers=(
            replace(WORKER, worker="taken", capacity=0.1, contended=True),
            replace(WORKER, worker="loose", mode=loose, uncontrolled=loose),
        ),
    )
    fake_board.past(10)
    page = (await visit((await fake_page(fake_board)).url)).page
    await expect(row(page, "m").locator(".why")).to_have_text(f"900 ms of 500 ms: {why}")
    await expect(row(page, "n").locator(".state")).to_have_text("Down")
    await expect(row(page, "n").locator(".why")).to_have_text(
        "unavailable: n@loose cannot run here: no such file"
    )
    await expect(page.locator("#workers .badge")).to_have_text(
        ["host busy with others", f"not controlled: {loose}"]
    )
    await expect(page.locator("#headline")).to_contain_text(
        "nothing controls the cores of worker loose"
    )


async def test_numbers_move_and_the_sla_is_drawn(fake_page, visit):
    actor = Actor("m", time=0.1)
    fake_board = FakeBoard(actor)
    fake_board.past(120)
    page = (await visit((await fake_page(fake_board)).url)).page
    time, line = row(page, "m").locator("td.time .value"), row(page, "m").locator("path.line")
    await expect(time).to_have_text("100 ms")
    await expect(row(page, "m").locator("path.sla")).to_have_attribute(
        "d", re.compile(r"^M0 .*H180$")
    )
    before = await line.get_attribute("d")
    assert before.count("L") > 20
    bar = row(page, "m").locator(".bullet .bar")
    assert await bar.get_attribute("width") == "10"  # the SLA stands at 50
    actor.time = 0.75
    fake_board.look()
    await expect(time).to_have_text("750 ms")
    await expect(bar).to_have_attribute("width", "75")
    await expect(line).not_to_have_attribute("d", before)


async def test_all_that_can_be_wrong_has_a_word_of_its_own(fake_page, visit):
    page = (await visit((await fake_page(crowd())).url)).page
    words = {
        "calm": "In time", "busy": "Late", "gone": "Down", "starting": "Loading",
        "unused": "Idle", "close": "Tight", "watched": "Late",
    }  # fmt: skip
    for model, word in words.items():
        await expect(row(page, model).locator(".state")).to_have_text(word)
    whys = {
        "unused": "no request yet",
        "gone": "nothing can serve it: gone@local is lost",
        "starting": "starting@local is loading",
        "far-away": "supervisor of far is silent for 34 s, cores stay as they are",
        "watched": "cores cannot change on watch (observe-only: no rights)",
        "rehearsed": "cores cannot change on dry (dry-run)",
    }
    for model, why in whys.items():
        await expect(row(page, model).locator(".why")).to_contain_text(why)
    await expect(row(page, "far-away").locator(".stages .applied")).to_have_text("–")
    workers = page.locator("#workers li")
    await expect(workers.locator(".badge")).to_have_text([
        "short of cores", "supervisor silent for 34 s", "observe-only: no rights",
        "dry run: nothing is applied",
    ])  # fmt: skip
    assert (await order(page))[:3] == ["gone", "starting", "busy"]


async def test_an_error_is_text_whatever_it_holds(fake_page, visit):
    fake_board = crowd()
    fake_board.decide("stuck", 0.6, failure=HOSTILE)
    page = (await visit((await fake_page(fake_board)).url)).page
    await expect(row(page, "stuck").locator(".why")).to_contain_text("<img src=x onerror")
    await row(page, "stuck").click()
    await expect(page.locator(".decisions .words")).to_contain_text("<img src=x onerror")
    await expect(page.locator("table.executables")).to_contain_text("<img src=x onerror")
    assert await page.locator("img").count() == 0
    assert "owned" not in await page.title()


async def test_the_filter_finds_names_and_states(fake_page, visit):
    page = (await visit((await fake_page(crowd())).url)).page
    await expect(row(page, "calm")).to_be_visible()
    await page.keyboard.press("/")
    await page.keyboard.type("late bu")
    await expect(page.locator("tbody tr:visible")).to_have_count(1)
    await expect(row(page, "busy")).to_be_visible()
    await page.keyboard.type("xyz")
    await expect(page.get_by_text("No model matches “late buxyz”.")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.locator("tbody tr:visible")).to_have_count(10)
    await page.get_by_role("button", name="Tight").click()
    await expect(page.locator("tbody tr:visible")).to_have_count(1)
    await expect(row(page, "close")).to_be_visible()
    await expect(page.get_by_role("button", name="Tight")).to_have_attribute("aria-pressed", "true")


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
    await page.get_by_label("only changes and refusals").uncheck()
    await expect(items).to_have_count(5)


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


async def test_a_dispatcher_that_is_gone_and_comes_back(fake_page, visit):
    actor = Actor("m", time=0.1)
    fake_board = FakeBoard(actor)
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
    fresh = FakeBoard(actor)  # a new process: it remembers nothing
    fresh.at = fake_board.at + 5
    await theatre.play(fresh)
    await expect(banner).to_be_hidden()  # a view came: of a board that nobody has looked at yet
    fresh.look()  # the first look, from which counting begins: no models either
    async with running(fresh):
        await expect(page.locator("#headline")).to_have_text("All promises kept")
        actor.time = 0.2
        await expect(row(page, "m").locator("td.time")).to_contain_text("200 ms")
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


async def test_of_a_large_fleet_the_worst_are_shown_and_others_are_found(fake_page, visit):
    fake_board = FakeBoard(*(Actor(f"model-{i:03}", time=0.1 + i / 10_000) for i in range(205)))
    fake_board.past(5)
    page = (await visit((await fake_page(fake_board)).url)).page
    await expect(page.locator("tbody tr")).to_have_count(200)
    await expect(page.get_by_text("The first 200 of 205 models")).to_be_visible()
    await expect(row(page, "model-000")).to_have_count(0)
    await page.get_by_label("Filter by name or state").fill("model-000")
    await expect(row(page, "model-000").locator("td.time")).to_contain_text("100 ms")
    await expect(page.locator("tbody tr")).to_have_count(1)


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


async def test_calm_models_keep_their_places(fake_page, visit):
    a, b, c = Actor("a", time=0.10), Actor("b", time=0.11), Actor("c", time=0.12)
    fake_board = FakeBoard(a, b, c)
    fake_board.past(20)
    page = (await visit((await fake_page(fake_board)).url)).page
    await expect(page.locator("tbody tr")).to_have_count(3)
    assert await order(page) == ["c", "b", "a"]
    a.time, c.time = 0.2, 0.05  # the server would now put a first
    fake_board.look()
    await expect(row(page, "a").locator("td.time")).to_contain_text("200 ms")
    assert [m.model for m in fake_board.view.models] == ["a", "b", "c"]
    b.time = 0.9
    fake_board.look()
    await expect(row(page, "b").locator(".state")).to_have_text("Late")
    assert await order(page) == ["b", "c", "a"]


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
    long = "a-model-with-a-very-long-name-" * 4
    fake_board = FakeBoard(Actor(long, **LATE), Actor("m"))
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


async def test_a_dispatcher_that_has_just_started_is_waited_for(fake_page, visit):
    fake_board = FakeBoard(Actor("m", rate=0, time=None))
    page = (await visit((await fake_page(fake_board)).url)).page
    await expect(page.locator("#headline")).to_have_text("Waiting for the first look at the models")
    await expect(page.get_by_text("No model is served yet")).to_be_visible()
    fake_board.look()
    await expect(row(page, "m").locator(".why")).to_have_text("no request yet")
    await expect(page.locator("#headline")).to_have_text("No requests now")


async def test_a_line_of_totals_links_elsewhere_and_a_list_of_keys(fake_page, visit):
    links = {"Grafana": "http://127.0.0.1:3000", "Runbook": "https://runbook.example"}
    fake_board = FakeBoard(
        Actor("calm"), Actor("busy", **LATE), workers=(replace(WORKER, capacity=4.0),), links=links
    )
    fake_board.past(60)
    page = (await visit((await fake_page(fake_board)).url)).page
    totals = page.locator("#totals")
    await expect(totals).to_contain_text("Requests")
    await expect(totals).to_contain_text("40 /s")
    await expect(totals.locator("div", has_text="Late, 1 min").locator("dd")).to_have_text("25 %")
    applied = fake_board.board.view.workers[0].applied
    saved = totals.locator("div", has_text="Cores saved").locator("dd")
    await expect(saved).to_have_text(f"{4.0 - applied:.2f}")
    for name, address in links.items():
        await expect(page.get_by_role("link", name=name)).to_have_attribute("href", address)
    await page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Keys")
    await expect(keys).to_be_visible()
    await expect(keys).to_contain_text("find a model")
    await page.keyboard.press("Escape")
    await expect(keys).to_be_hidden()


async def test_on_a_phone_decisions_are_folded_until_they_are_asked_for(fake_page, visit):
    fake_board = FakeBoard(Actor("m"))
    fake_board.past(30)
    fake_board.decide("m", 0.6, ago=2)
    url = f"{(await fake_page(fake_board)).url}#model=m"
    phone = (await visit(url, viewport={"width": 390, "height": 844})).page
    await expect(phone.locator("ol.decisions")).to_be_hidden()
    await phone.get_by_text("All of them").click()
    await expect(phone.locator("ol.decisions li").first).to_be_visible()
    desk = (await visit(url)).page
    await expect(desk.locator("ol.decisions li").first).to_be_visible()
