"""A real browser: Debian's Chromium, driven by Playwright. Its loop is the module's."""

import contextlib
import os
import shutil

import pytest
import pytest_asyncio
from playwright.async_api import async_playwright

from roma.tools.demo.ports import free_ports
from tests.support.fake_board import FakePage

CHROMIUM = shutil.which("chromium")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser():
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    async with async_playwright() as playwright:
        # CI runs as root, where Chromium has no sandbox.
        arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        await browser.close()


class Visitor:
    """A page, and all that it asked for and complained about."""

    def __init__(self, page):
        self.page = page
        self.requests = []
        self.complaints = []
        self.tolerated = ()
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._say)

    def _say(self, message):
        expected = any(text in message.text for text in self.tolerated)
        if message.type in ("error", "warning") and not expected:
            self.complaints.append(message.text)


@pytest_asyncio.fixture(loop_scope="module")
async def visit(browser):
    """Open pages; each must end without a complaint and without having asked anyone else."""
    contexts, visitors = [], []

    async def open_page(url, *, tolerated=(), **options):
        options = {"viewport": {"width": 1440, "height": 900}, **options}
        context = await browser.new_context(**options)
        contexts.append(context)
        page = await context.new_page()
        page.set_default_timeout(10_000)
        visitor = Visitor(page)
        visitor.tolerated = tolerated
        visitors.append((visitor, url.partition("#")[0]))
        await page.goto(url)
        return visitor

    yield open_page
    for context in contexts:
        await context.close()
    for visitor, origin in visitors:
        assert visitor.complaints == []
        assert all(url.startswith(origin) for url in visitor.requests), visitor.requests


@pytest_asyncio.fixture(loop_scope="module")
async def fake_page():
    """Where scenes are played."""
    pages = []

    async def play(fake_board):
        (port,) = free_ports(1)
        fake_page = FakePage(port)
        pages.append(fake_page)
        fake_board.look()
        await fake_page.play(fake_board)
        return fake_page

    yield play
    for fake_page in pages:
        with contextlib.suppress(ConnectionError):
            await fake_page.end()
