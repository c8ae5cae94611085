"""The pods of a namespace, kept up to date by list and watch.

The API's rules: a watch goes on from the version of the list; bookmarks move that version; one that
is too old is answered by an ERROR event with code 410, and then everything is listed again
(Kubernetes API concepts, "Efficient detection of changes").
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from roma.kubernetes.client import ApiServerError, Client
from roma.kubernetes.pods import Pod, parse

LIST_LIMIT: Final = 10.0
"""Seconds that a list may take."""

WATCH_SECONDS: Final = "270"
"""Seconds after which the server ends a watch in order: shorter than the usual idle limits of
proxies."""

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0
"""Seconds between two attempts, growing."""

log = logging.getLogger(__name__)


class PodWatch:
    """The pods that a selector finds, by name.

    `away_since` is the event loop's time since which the API server does not answer, None while it
    does; `trouble` is its last error.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        container: str,
        *,
        labels: str = "",
        fields: str = "",
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.pods: dict[str, Pod] = {}
        self.client = client
        self.namespace = namespace
        self.away_since: float | None = None
        self.trouble = ""
        self.relists = 0
        self.is_listed = False
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._container = container
        self._query = {"labelSelector": labels, "fieldSelector": fields}
        self._jitter = jitter
        self._version = ""
        """Version from which the next watch goes on; "" after which everything is listed."""
        self._fresh = asyncio.Event()

    async def run(self) -> None:
        """Keep the pods up to date until cancelled, whatever the API server does."""
        pause, clock = FIRST_PAUSE, asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                if not self._version:
                    await self._list()
                await self._follow()
            except ApiServerError as error:
                if error.status:  # it has answered: begin anew, in case the version is the reason
                    self._version = ""
                self._went_away(error)
            # A server that ends every watch at once must not be asked without a pause, either.
            pause = FIRST_PAUSE if clock() - began > LONGEST_PAUSE else pause
            await asyncio.sleep(pause * (0.5 + self._jitter()))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def changes(self, running: "asyncio.Task[None]") -> AsyncIterator[Mapping[str, Pod]]:
        """Yield the pods once they are listed, and again after changes; many count as one.

        `running` is the task of `run`, whose failure this raises.
        """
        while True:
            fresh = self._fresh
            if self.is_listed:
                yield self.pods
            waiting = asyncio.create_task(fresh.wait())
            try:
                await asyncio.wait([waiting, running], return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
            if running.done():
                running.result()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on the pods holds."""
        while not condition():
            await self._fresh.wait()

    def take(self, found: Mapping[str, Any]) -> Pod | None:
        """Take over a pod from an answer, unless a newer state is known; return it."""
        pod = self._parsed(found)
        if pod is None:
            return None
        known = self.pods.get(pod.name)
        # One that the watch has removed does not come back by an answer that was on its way.
        if known and known.uid == pod.uid and known.generation <= pod.generation:
            self.pods[pod.name] = pod
            self._wake()
        return pod

    async def _list(self) -> None:
        found = await self.client.get(self._path, LIST_LIMIT, **self._query)
        self.relists += 1
        pods = [self._parsed(item) for item in found.get("items") or ()]
        self.pods = {pod.name: pod for pod in pods if pod is not None}
        self.is_listed = True
        self._came_back()
        self._wake()
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
            kind, found = event.get("type"), event.get("object") or {}
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
        pod = self._parsed(found)
        if pod is None:
            return
        if kind == "DELETED":
            self.pods.pop(pod.name, None)
        else:
            self.pods[pod.name] = pod
        self._wake()

    def _parsed(self, found: Mapping[str, Any]) -> Pod | None:
        try:
            return parse(found, self._container)
        except ValueError as error:
            log.warning("%s: %s", self._path, error)
            return None

    def _wake(self) -> None:
        woken, self._fresh = self._fresh, asyncio.Event()
        woken.set()

    def _came_back(self) -> None:
        if self.away_since is not None:
            log.info("%s: the API server answers again", self._path)
        self.away_since, self.trouble = None, ""

    def _went_away(self, error: ApiServerError) -> None:
        if self.away_since is None:
            self.away_since = asyncio.get_running_loop().time()
        if self.trouble != str(error):  # once per reason, not once per attempt
            log.warning("%s; what is known stays in force", error)
        self.trouble = str(error)
