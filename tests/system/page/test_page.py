"""The live page in a real browser, over scenes of all that can happen."""

import re
from dataclasses import replace

import pytest
from playwright.async_api import expect

from roma.domain.model import Device
from tests.support.fake_board import WORKER, Actor, FakeBoard
from tests.support.page_scenes import HOSTILE, LATE, crowd, order, row

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
    await expect(row(page, "m").locator(".bullet .oldest")).to_have_attribute("width", "40")
    fake_board.actors["m"].waiting, fake_board.actors["m"].running = 0, 1
    fake_board.look()
    await expect(row(page, "m").locator("td.queue")).to_contain_text("oldest 400 ms")
    await expect(row(page, "m").locator(".bullet .oldest")).to_have_attribute("width", "40")
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
        "far-away": "supervisor of far is silent for 34 s, cores do not follow the load",
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
    # What broke a promise in the last minute counts though nothing of its model ends any more.
    fake_board.actors["busy"].rate = fake_board.actors["busy"].late = 0
    fake_board.look()
    await expect(row(page, "busy").locator("td.rate .value")).to_have_text("0")
    await expect(totals.locator("div", has_text="Late, 1 min").locator("dd")).to_have_text("25 %")
    applied = fake_board.dashboard.view.workers[0].applied
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
