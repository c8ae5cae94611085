"""Take the pictures of the live page that the documents show: a real deployment under real load.

`make pictures` rewrites docs/page/*.png, in about five minutes. It needs Chromium, and a font that
is pleasant to look at (Debian: `chromium fonts-inter`).
"""

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.async_api import Browser, async_playwright, expect

from roma.tools.demo import inputs, models
from tests.support.up import Up, write_config

FOLDER = Path(__file__).with_name("page")
CACHE = Path(".cache").resolve()

NAMES = {"photos": "photos", "photos-archive": "photos", "digits": "digits", "receipts": "digits"}
"""Models by the SavedModel behind them."""

CALM = {"photos": 12, "digits": 25, "receipts": 10}
BUSY = {"photos": 35, "digits": 60, "receipts": 15}
BURST = {"photos": 300, "digits": 70, "receipts": 15}
STORY = ((CALM, 50), (BUSY, 40), (CALM, 40), (BUSY, 30), (CALM, 30))
"""Requests per second of each model, for so many seconds."""


async def main() -> None:
    """Start everything, let some minutes pass, and look at the page when a model is late."""
    FOLDER.mkdir(exist_ok=True)
    built = models.prepare(CACHE, download=False)
    paths = {name: built[source].path for name, source in NAMES.items()}
    bodies = {
        "digits": [body for body, _ in inputs.digits_held_out()],
        "photos": inputs.photo_bodies(16, seed=1),
    }
    with tempfile.TemporaryDirectory() as directory:
        file = write_config(directory, paths, name="demo")
        with Up(file) as up:
            await up.ready()
            payloads = {name: bodies[source] for name, source in NAMES.items()}
            for rates, seconds in STORY:
                await up.load(rates, payloads, seconds)
            burst = asyncio.create_task(up.load(BURST, payloads, 60))
            async with async_playwright() as playwright:
                arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
                browser = await playwright.chromium.launch(
                    executable_path=shutil.which("chromium"), args=arguments
                )
                await take(browser, up.admin)
                await browser.close()
            await burst


async def take(browser: Browser, url: str) -> None:
    """Take all pictures."""
    phone = {"device_scale_factor": 2}
    await shot(browser, url, "light", (1440, 600), "light")
    await shot(browser, url, "dark", (1440, 600), "dark")
    await shot(browser, f"{url}/#model=photos", "detail", (1440, 1000), "light")
    await shot(browser, f"{url}/#model=photos", "detail-dark", (1440, 1000), "dark")
    await shot(browser, url, "phone", (390, 844), "light", **phone)


async def shot(
    browser: Browser, url: str, name: str, size: tuple[int, int], scheme: str, **options: object
) -> None:
    """Take one picture, once the worker is short and a model is late."""
    width, height = size
    context = await browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, **options
    )
    page = await context.new_page()
    await page.goto(url)
    await expect(page.locator("#headline")).to_contain_text("short of cores", timeout=30_000)
    await expect(page.locator("#headline")).to_contain_text("late", timeout=30_000)
    if "#" in url:
        await expect(page.locator(".decisions .words").nth(3)).to_be_visible()
    path = FOLDER / f"{name}.png"
    await page.screenshot(path=path)
    print(f"{path}: {path.stat().st_size // 1024} KiB")
    await context.close()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
