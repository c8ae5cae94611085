"""The live page of a real deployment: a model, its load, and a dispatcher that is killed."""

import contextlib
import os
import re
import signal

import pytest
from playwright.async_api import expect

from roma.tools.demo import inputs
from tests.support.up import Up, kill, write_config
from tests.support.waiting import beside

pytestmark = pytest.mark.asyncio(loop_scope="module")


@contextlib.asynccontextmanager
async def loaded(up, rates):
    """Keep a load on the deployment, also while its dispatcher is away."""
    bodies = {"digits": [body for body, _ in inputs.digits_held_out()]}
    async with beside(up.load(rates, bodies, 60)):
        yield


async def test_the_page_of_a_real_deployment(tmp_path, demo_models, visit):
    models = {"digits": demo_models["digits"]}
    with Up(write_config(tmp_path, models, name=f"page-{os.getpid()}")) as up:
        await up.ready()
        async with loaded(up, {"digits": 20}):
            gone = ("Failed to load resource", "net::ERR")
            page = (await visit(up.admin, tolerated=gone)).page
            page.set_default_timeout(30_000)
            expect.set_options(timeout=30_000)
            try:
                await look(page)
                await restart(up, page)
            finally:
                expect.set_options(timeout=5000)


async def look(page):
    digits = page.get_by_role("row").filter(has=page.get_by_role("link", name="digits"))
    await expect(digits.locator("td.rate .value")).to_have_text(re.compile(r"^\d\d$"))
    await expect(digits.locator("path.sla")).to_have_attribute("d", re.compile("H180$"))
    await expect(digits.locator(".stages .applied")).to_have_text(re.compile(r"^\d\.\d\d$"))
    before = await digits.locator("path.line").get_attribute("d")
    await expect(digits.locator("path.line")).not_to_have_attribute("d", before)
    await digits.click()
    words = page.locator(".decisions .words").first
    await expect(words).to_have_text(
        re.compile(r"requests arrived in .* Response time .* It needs .* cores .* it gets")
    )
    said = await words.text_content()
    await expect(words).not_to_have_text(said)
    await expect(page.locator("table.executables tbody")).to_contain_text("digits@local")


async def restart(up, page):
    line = page.locator(".chart g > path.main").first
    before = await line.get_attribute("d")
    (pid,) = up.children("dispatcher")
    kill(pid, signal.SIGSTOP)  # it holds its connections and says nothing: the worst way to go
    await expect(page.locator("#banner")).to_contain_text("The dispatcher does not answer since")
    kill(pid)
    await expect(page.locator("#banner")).to_be_hidden()
    (after,) = up.children("dispatcher")
    assert after != pid
    facts = page.locator(".facts")
    await expect(facts).to_contain_text(re.compile(r"Requests[1-9]\d* per second"))
    await expect(line).not_to_have_attribute("d", before)  # drawn with what the new one says
    # The new dispatcher knows nothing of the past; the page does.
    assert (await line.get_attribute("d")).count("L") >= before.count("L")
