"""A running dispatcher takes over its file: whole, or not at all."""

import asyncio
import json
import signal
import urllib.error
import urllib.request

import pytest

from tests.system.integration.test_shared_port import Town


@pytest.fixture
def town(tmp_path):
    town = Town(tmp_path)
    yield town
    town.close()


def call(url, data=None, method=None, **headers):
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


async def test_the_admin_port_says_what_became_of_a_changed_file(town):
    admin = town.admins[0]
    reload = f"http://127.0.0.1:{admin}/control/v1/reload"
    predict = f"{town.url}/v1/models/m:predict"
    town.start(admin)
    await town.ready(admin)
    first = town.file.read_text()
    assert call(predict, b"x" * 5000)[0] == 200

    town.file.write_text(first.replace("{port:", "{max_body_bytes: 2000, port:"))
    assert call(reload, b"") == (200, {"models": ["m"]})
    assert call(predict, b"x" * 5000)[0] == 413

    for wrong, fault in (
        ("{max_body_bytes: 7, port:", "gateway.max_body_bytes = 7"),
        ("{drain_timeout: 3, port:", "gateway.drain_timeout changed: takes a restart"),
        ("{", "roma.yaml"),
    ):
        town.file.write_text(first.replace("{port:", wrong))
        status, body = call(reload, b"")
        assert (status, fault in body["error"]) == (409, True), body
    assert call(predict, b"x" * 5000)[0] == 413  # what was in force still is
    assert call(reload, b"", Origin="http://elsewhere")[0] == 403
    assert call(predict, b"x")[0] == 200


async def test_sighup_does_the_same(town):
    admin = town.admins[0]
    town.start(admin)
    await town.ready(admin)
    text = town.file.read_text()
    town.file.write_text(text.replace("{port:", "{max_body_bytes: 2000, port:"))
    town.programs[admin].send_signal(signal.SIGHUP)
    async with asyncio.timeout(30):
        while call(f"{town.url}/v1/models/m:predict", b"x" * 5000)[0] != 413:
            await asyncio.sleep(0.05)
