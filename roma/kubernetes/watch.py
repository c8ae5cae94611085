"""Pods and nodes, kept up to date by list and watch.

The API's rules: a watch goes on from the version of the list; bookmarks move that version; one that
is too old is answered by an ERROR event with code 410, and then everything is listed again
(Kubernetes API concepts, "Efficient detection of changes").
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from roma.kubernetes.client import ApiServerError, Client
from roma.kubernetes.nodes import Node, parse_node
from roma.kubernetes.pods import Pod, parse

LIST_LIMIT: Final = 10.0
"""Seconds that a list may take."""

WATCH_SECONDS: Final = "270"
"""Seconds after which the server ends a watch in order: shorter than the usual idle limits of
proxies."""

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0
"""Seconds between two attempts, growing."""

COALESCED: Final = 0.05
"""Seconds of changes that count as one: every limit that moves is two, hundreds of pods' many."""

log = logging.getLogger(__name__)


class Named(Protocol):
    """An object of the API, reduced; names are unique in what is watched."""

    @property
    def name(self) -> str:
        """Its name."""
        ...


T = TypeVar("T", bound=Named)


class ObjectWatch(Generic[T]):
    """The objects at a path that selectors find, by name.

    `parse` raises ValueError for an object of another kind. `key` is that of roma.yaml by which
    they were asked for, to be named with an error.
    `away_since` is the event loop's time since which the API server does not answer, None while it
    does; `trouble` is its last error.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        parse: Callable[[Mapping[str, Any]], T],
        *,
        labels: str = "",
        fields: str = "",
        key: str = "",
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.objects: dict[str, T] = {}
        self.client = client
        self.away_since: float | None = None
        self.trouble = ""
        self.is_listed = False
        self._path = path
        self._parse = parse
        self._query = {"labelSelector": labels, "fieldSelector": fields}
        self._named = f"{key}: " if key else ""
        self._jitter = jitter
        self._version = ""
        """Version from which the next watch goes on; "" after which everything is listed."""
        self._changed: dict[str, asyncio.Event] = {}
        """Set, and then forgotten, at the next change of an object, by its name."""
        self.fresh = asyncio.Event()
        """Set at the next change, and then replaced."""

    async def run(self) -> None:
        """Keep the objects up to date until cancelled, whatever the API server does."""
        pause, clock = FIRST_PAUSE, asyncio.get_running_loop().time
        while True:
            began, rest = clock(), 0.0
            try:
                if not self._version:
                    await self._list()
                await self._follow()
            except ApiServerError as error:
                rest = error.retry_after
                if error.status:  # it has answered: begin anew, in case the version is the reason
                    self._version = ""
                self._went_away(error)
            # A server that ends every watch at once must not be asked without a pause, either.
            pause = FIRST_PAUSE if clock() - began > LONGEST_PAUSE else pause
            await asyncio.sleep(rest + pause * (0.5 + self._jitter()))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def until(self, name: str, condition: Callable[[], bool]) -> None:
        """Wait until a condition on an object holds; it is tried when that object changes.

        Hundreds may wait, and each event is about one object.
        """
        while not condition():
            await self._changed.setdefault(name, asyncio.Event()).wait()

    async def _list(self) -> None:
        found = await self.client.get(self._path, LIST_LIMIT, **self._query)
        # A proxy may answer in the server's place, and what it leaves out is not gone.
        if "items" not in found or not isinstance(items := found["items"] or [], list):
            raise ApiServerError(f"{self._path}: an answer that is no list")
        listed = [self._parsed(item) for item in items]
        self.objects = {one.name: one for one in listed if one is not None}
        self.is_listed = True
        self._came_back()
        self._wake(*self._changed)
        self._version = str((found.get("metadata") or {}).get("resourceVersion") or "")

    async def _follow(self) -> None:
        """Follow a watch to its end."""
        events = self.client.watch(
            self._path,
            self._came_back,
            resourceVersion=self._version,
            allowWatchBookmarks="true",
            timeoutSeconds=WATCH_SECONDS,
            **self._query,
        )
        async for event in events:
            kind, found = event.get("type"), event["object"]
            if kind == "ERROR":
                if found.get("code") == 410:
                    log.info("%s: version %s is too old", self._path, self._version)
                    self._version = ""
                    return
                raise ApiServerError(
                    f"{self._path}: {found.get('message')}", found.get("code") or 500
                )
            seen = (found.get("metadata") or {}).get("resourceVersion")
            self._version = str(seen or self._version)
            if kind != "BOOKMARK":
                self._apply(kind, found)

    def _apply(self, kind: object, found: Mapping[str, Any]) -> None:
        if kind == "DELETED":  # also of an object that has become unreadable
            name = str((found.get("metadata") or {}).get("name"))
            self.objects.pop(name, None)
            self._wake(name)
        elif (one := self._parsed(found)) is not None:
            self.objects[one.name] = one
            self._wake(one.name)

    def _parsed(self, found: Mapping[str, Any]) -> T | None:
        try:
            return self._parse(found)
        except ValueError as error:
            meta = found.get("metadata") if isinstance(found, dict) else None
            name = meta.get("name") if isinstance(meta, dict) else None
            log.warning("%s: %s: %s", self._path, name or "an object without a name", error)
            return None

    def _wake(self, *names: str) -> None:
        woken, self.fresh = self.fresh, asyncio.Event()
        woken.set()
        for name in names:
            if (changed := self._changed.pop(name, None)) is not None:
                changed.set()

    def _came_back(self) -> None:
        if self.away_since is not None:
            log.info("%s: the API server answers again", self._path)
        self.away_since, self.trouble = None, ""

    def _went_away(self, error: ApiServerError) -> None:
        if self.away_since is None:
            self.away_since = asyncio.get_running_loop().time()
        if self.trouble != str(error):  # once per reason, not once per attempt
            log.warning("%s%s; what is known stays in force", self._named, error)
        self.trouble = str(error)


class PodWatch(ObjectWatch[Pod]):
    """The pods of a namespace; `container` is the name of the one that serves."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        container: str,
        *,
        labels: str = "",
        fields: str = "",
        key: str = "",
        jitter: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(
            client,
            f"/api/v1/namespaces/{namespace}/pods",
            lambda found: parse(found, container),
            labels=labels,
            fields=fields,
            key=key,
            jitter=jitter,
        )
        self.namespace = namespace

    @property
    def pods(self) -> dict[str, Pod]:
        """The pods by name."""
        return self.objects

    def take(self, found: Mapping[str, Any]) -> Pod | None:
        """Take over a pod from an answer, unless a newer state is known; return it."""
        pod = self._parsed(found)
        if pod is None:
            return None
        known = self.objects.get(pod.name)
        # One that the watch has removed does not come back by an answer that was on its way, and of
        # the same generation the watch may know a newer status.
        if known and known.uid == pod.uid and known.generation < pod.generation:
            self.objects[pod.name] = pod
            self._wake(pod.name)
        return pod


def node_watch(client: Client, labels: str, key: str) -> ObjectWatch[Node]:
    """Return a watch of the nodes with these labels, for which `key` of roma.yaml asks."""
    return ObjectWatch(client, "/api/v1/nodes", parse_node, labels=labels, key=key)


async def changes(
    watches: Sequence[ObjectWatch[Any]], running: Sequence["asyncio.Task[None]"]
) -> AsyncIterator[None]:
    """Yield once all watches have listed, and again after changes; many count as one.

    `running` are the tasks of their `run`, whose failure this raises.
    """
    while True:
        fresh = [watch.fresh for watch in watches]
        if all(watch.is_listed for watch in watches):
            yield
            await asyncio.sleep(COALESCED)
        waiting = [asyncio.create_task(event.wait()) for event in fresh]
        try:
            await asyncio.wait([*waiting, *running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        for watching in running:
            if watching.done():
                watching.result()
