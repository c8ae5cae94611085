"""The pods as a watch keeps them: gaps, versions that are too old, an API server that is away."""

import asyncio
import logging
import socket
import ssl

import pytest
import trustme

from roma.kubernetes.client import ApiServerError, Client
from roma.kubernetes.credentials import find
from roma.kubernetes.watch import PodWatch
from roma.tools.demo.ports import free_ports
from tests.support.fake_api_server import FakeApiServer, pod
from tests.support.waiting import beside, until


async def test_pods_come_change_and_go_as_the_events_say(cluster):
    api, watch = cluster.api, cluster.watch
    await until(lambda: watch.is_listed)
    await cluster.add(pod("a"))
    leaving = api.pods["a"]
    leaving["metadata"]["deletionTimestamp"] = "2026-11-27T18:00:00Z"
    api.put(leaving)
    await until(lambda: watch.pods["a"].is_leaving)
    api.delete("a")
    await until(lambda: not watch.pods)
    assert api.lists == 1


async def test_a_bookmark_moves_the_version_from_which_the_next_watch_goes_on(cluster):
    api = cluster.api
    await until(lambda: api.watches == 1)
    api.version = 90
    api.tell({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "90"}}})
    await asyncio.sleep(0.05)
    api.forget()  # the watch ends; 90 is not too old
    await until(lambda: api.watches == 2)
    await cluster.add(pod("a"))
    assert api.lists == 1


async def test_a_version_that_is_too_old_is_listed_again(cluster):
    api, watch = cluster.api, cluster.watch
    await until(lambda: api.watches == 1)
    await cluster.add(pod("a"))
    api.version += 7  # events that this watch did not see
    missed = pod("b")
    missed["metadata"]["resourceVersion"] = str(api.version)
    api.pods = {"b": missed}
    api.forget()
    await until(lambda: set(watch.pods) == {"b"})
    assert api.lists == 2
    assert watch.away_since is None


@pytest.mark.parametrize("code", [429, 500, 503, 401, 403])
async def test_while_the_server_refuses_the_pods_stay_and_it_is_told_once(cluster, caplog, code):
    api, watch = cluster.api, cluster.watch
    await cluster.add(pod("a"))
    caplog.set_level(logging.WARNING)
    api.down_code, api.is_down = code, True
    api.forget()
    await until(lambda: watch.away_since is not None)
    await asyncio.sleep(0.1)  # several attempts
    assert set(watch.pods) == {"a"}
    assert f"status {code}: the fake is down" in watch.trouble
    assert len([r for r in caplog.records if "stays in force" in r.message]) == 1
    api.is_down = False
    api.put(pod("b"), "ADDED")
    await until(lambda: set(watch.pods) == {"a", "b"})
    assert watch.away_since is None


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("", 0), ("5", 5), (400 * "9", 30), ("-1", 0), ("Sun, 29 Nov 2026 11:00:00 GMT", 0)],
)
async def test_how_long_a_server_wants_to_be_left_alone_is_known(cluster, said, seconds):
    api, watch = cluster.api, cluster.watch
    api.is_down, api.down_code, api.retry_after = True, 429, said
    with pytest.raises(ApiServerError, match="status 429: the fake is down") as refused:
        await watch.client.get("/api/v1/nodes", 5)
    assert refused.value.retry_after == seconds


async def test_a_host_that_is_gone_without_a_word_is_noticed_by_probes(cluster):
    """As after a failure of its power or network: nothing closes the connection of a watch."""
    await until(lambda: cluster.api.watches == 1)
    opened = cluster.client._session.connector._acquired
    (sock,) = (connection.transport.get_extra_info("socket") for connection in opened)
    options = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
    idle, between, count = (sock.getsockopt(socket.IPPROTO_TCP, option) for option in options)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert idle + between * count <= 30


async def test_a_server_that_is_gone_is_waited_for(cluster):
    watch = cluster.watch
    await cluster.add(pod("a"))
    await cluster.api.stop()
    await until(lambda: watch.away_since is not None)
    assert "not reachable" in watch.trouble
    assert set(watch.pods) == {"a"}
    cluster.api.pods.clear()
    other = FakeApiServer()
    other.version = 50
    other.put(pod("b"), "ADDED")
    await other.start(cluster.port)
    cluster.api = other
    await until(lambda: set(watch.pods) == {"a", "b"})  # it goes on where it was
    await other.stop()


def issue(authority):
    """Return the context of a server of this machine."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    return tls


async def test_an_authority_that_is_replaced_is_trusted_without_a_restart(monkeypatch, tmp_path):
    """A pod's ca.crt has the new one before the API server shows a certificate of it."""
    monkeypatch.setattr("roma.kubernetes.watch.FIRST_PAUSE", 0.01)
    monkeypatch.setattr("roma.kubernetes.credentials.SERVICE_ACCOUNT", tmp_path)
    old, new, (port,) = trustme.CA(), trustme.CA(), free_ports(1)
    for name, text in (("namespace", b"models"), ("token", b"t"), ("ca.crt", old.cert_pem.bytes())):
        (tmp_path / name).write_bytes(text)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
    before, after = FakeApiServer(), FakeApiServer()
    watch = PodWatch(Client(find()), "models", "model-server", jitter=lambda: 0.5)
    await before.start(port, issue(old))
    async with beside(watch.run()):
        await until(lambda: before.watches == 1)
        await before.stop()
        await after.start(port, issue(new))
        after.put(pod("a"), "ADDED")
        await until(lambda: "certificate verify failed" in watch.trouble)
        assert not watch.pods  # nobody is trusted whom the file does not name
        (tmp_path / "ca.crt").write_bytes(old.cert_pem.bytes() + new.cert_pem.bytes())
        await until(lambda: "a" in watch.pods)
    await watch.client.close()
    await after.stop()


@pytest.mark.parametrize("event", [{"type": "MODIFIED", "object": {"kind": "Pod"}}, {"type": "X"}])
async def test_an_event_that_is_no_pod_harms_nobody(cluster, event, caplog):
    await until(lambda: cluster.api.watches == 1)
    cluster.api.tell({"object": {}, **event})
    await cluster.add(pod("a"))
    assert "an object that is no pod" in caplog.text


async def test_a_pod_that_cannot_be_read_is_named(cluster, caplog):
    await until(lambda: cluster.api.watches == 1)
    cluster.api.put(pod("odd", limit="lots"), "ADDED")
    await cluster.add(pod("a"))
    assert "pods: odd: 'lots' is no CPU quantity" in caplog.text


async def test_a_pod_in_an_answer_counts_unless_a_newer_one_is_known(cluster):
    await until(lambda: cluster.api.watches == 1)
    cluster.watch.take(pod("a"))
    assert not cluster.watch.pods  # the watch decides which pods there are
    await cluster.add(pod("a"))
    newer, older = pod("a", limit="2"), pod("a", limit="1")
    newer["metadata"]["generation"] = 3
    cluster.watch.take(newer)
    cluster.watch.take(older)
    assert cluster.watch.pods["a"].limit == 2000
    # Of a generation that the watch knows it may know a newer status.
    ended = pod("a", limit="2")
    ended["metadata"]["generation"], ended["status"]["phase"] = 3, "Failed"
    cluster.api.put(ended)
    await until(lambda: not cluster.watch.pods["a"].is_served)
    cluster.watch.take(newer)
    assert not cluster.watch.pods["a"].is_served


async def test_a_pod_that_can_no_longer_be_read_goes_when_it_is_deleted(cluster):
    await cluster.add(pod("a"))
    cluster.api.put(pod("a", limit="lots"))
    cluster.api.delete("a")
    await until(lambda: not cluster.watch.pods)


@pytest.mark.parametrize(
    ("major", "minor", "words"),
    [("1", "32", "API server v1.32.9: in-place"), ("1", "33+", ""), ("2", "0", ""), ("1", "?", "")],
)
async def test_a_server_that_cannot_resize_in_place_is_known(cluster, major, minor, words):
    version = f"v{major}.{minor}.9"
    cluster.api.release = {"major": major, "minor": minor, "gitVersion": version}
    said = await cluster.client.too_old(60)
    assert said.startswith(words)
    assert bool(said) == bool(words)
    cluster.api.is_down = True
    assert await cluster.client.too_old(60) == ""


async def test_an_answer_of_401_names_where_the_credentials_are_from(cluster):
    cluster.api.is_down, cluster.api.down_code = True, 401
    with pytest.raises(
        ApiServerError, match="the credentials of a test are not accepted"
    ) as raised:
        await cluster.client.get("/api/v1/namespaces/models/pods", 60)
    assert not raised.value.is_passing


@pytest.mark.parametrize(
    "answer",
    [{}, {"status": "ok"}, {"items": 5}, {"items": {"a": 1}}, {"items": [], "metadata": 5}, []],
)
async def test_an_answer_of_somebody_else_removes_no_pod(cluster, answer):
    api, watch = cluster.api, cluster.watch
    await cluster.add(pod("a"))
    api.listed = answer
    api.version += 7  # events that this watch did not see
    api.forget()
    await until(lambda: watch.away_since is not None)
    assert set(watch.pods) == {"a"}
    api.listed = None
    api.put(pod("b"), "ADDED")
    await until(lambda: set(watch.pods) == {"a", "b"})


@pytest.mark.parametrize(
    "event", [[], 5, None, {}, {"type": "ADDED", "object": [1]}, {"object": {"metadata": 5}}]
)
async def test_an_event_of_somebody_else_ends_only_that_watch(cluster, event):
    api, watch = cluster.api, cluster.watch
    await cluster.add(pod("a"))
    api.odd = event
    await cluster.add(pod("b"))
    assert set(watch.pods) == {"a", "b"}
    assert api.watches > 1


@pytest.mark.parametrize("release", [{"major": None, "minor": "32"}, {"major": "1", "minor": "32"}])
async def test_a_version_with_gaps_ends_nothing(cluster, release):
    cluster.api.release = release
    said = await cluster.client.too_old(60)
    assert bool(said) == (release["major"] is not None)
