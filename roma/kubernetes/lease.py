"""Leader election by a Lease (coordination.k8s.io/v1), by client-go's rules.

Clocks of hosts differ, so a lease has ended when its holder has written nothing for its duration by
our own clock. The holder stops to act before that: after the renewal deadline, two thirds of it.
"""

import asyncio
import logging
import uuid
from datetime import UTC, datetime
from typing import Any, Final

from roma.kubernetes.client import ApiServerError, Client

DURATION: Final = 3.0
"""Seconds without a renewal after which others may take the lease."""

DEADLINE: Final = 2.0
"""Seconds after the last renewal was sent in which its holder may act."""

RETRY: Final = 0.5
"""Seconds between two renewals or attempts."""

CALL_LIMIT: Final = 1.0
"""Seconds that a call may take."""

log = logging.getLogger(__name__)


class LeaderLease:
    """Our part in an election.

    `url` is where we are reached; `leader` is where the one that holds the lease is.
    """

    def __init__(self, client: Client, namespace: str, name: str, url: str) -> None:
        self.holder = ""
        # Two supervisors may have the same address, each on its own host.
        self.identity = f"{url}#{uuid.uuid4().hex}"
        self._client = client
        self._name = name
        self._all = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._all}/{name}"
        self._clock = asyncio.get_running_loop().time
        self._renewed = float("-inf")
        self._written: dict[str, Any] | None = None
        """The lease as we wrote it last; None if it may be another by now."""
        self._seen = ("", 0.0)
        """The version of the lease, and our time at which it was first seen."""
        self._missing = float("inf")
        """Our time at which it was first seen to be deleted."""
        self._said = ""

    @property
    def is_held(self) -> bool:
        """True while we may act."""
        return self._clock() < self._renewed + DEADLINE

    @property
    def leader(self) -> str:
        """URL of another supervisor that holds the lease; "" if there is none."""
        return "" if self.holder == self.identity else self.holder.partition("#")[0]

    async def acquired(self) -> None:
        """Return once we hold the lease."""
        while not await self._attempt():
            await asyncio.sleep(RETRY)
        log.info("%s: this supervisor leads", self._path)

    async def keep(self) -> None:
        """Renew the lease; return when another holds it.

        While the API server is away nobody can take it: then we may not act, and try again.
        """
        while not self.leader:
            await asyncio.sleep(RETRY)
            held = self.is_held
            await self._attempt()
            if held != self.is_held:
                log.warning("%s: %s", self._path, "not renewed in time" if held else "renewed")
        log.error("%s: %s holds the lease now", self._path, self.leader)

    async def release(self) -> None:
        """Give the lease back, so that another takes over at once."""
        if not self.is_held:
            return
        self._renewed, self._written = float("-inf"), None
        try:
            found = await self._get(DEADLINE)
            if found["spec"].get("holderIdentity") == self.identity:
                found["spec"]["holderIdentity"] = ""
                await self._client.put(self._path, found, DEADLINE)
        except ApiServerError as error:
            log.warning("%s; others take over in %g s", error, DURATION)

    async def _attempt(self) -> bool:
        """Take or renew the lease; return whether we hold it."""
        try:
            if await self._renew():
                return True
            found = await self._claim(self._clock())
            if found is None:
                return False
            await self._write(found)
        except ApiServerError as error:
            if error.status != 409 and str(error) != self._said:  # 409: another was faster
                log.warning("%s", error)
                self._said = str(error)
            return self.is_held
        return True

    async def _renew(self) -> bool:
        """Write the lease as we know it; return False if we do not hold it, or know it no longer.

        Where the API server is slow, reading it first would take the time in which we may act.
        """
        known, self._written = self._written, None
        if known is None or not self.is_held:
            return False
        try:
            await self._write(known)
        except ApiServerError as error:
            if error.status not in (404, 409):  # it was deleted, or changed
                raise
            return False
        return True

    async def _write(self, found: dict[str, Any]) -> None:
        """Write the lease as ours; we hold it from the time at which this was sent."""
        sent, found["spec"] = self._clock(), self._claimed(found["spec"])
        if "resourceVersion" in found["metadata"]:
            answer = self._checked(await self._client.put(self._path, found, CALL_LIMIT))
        else:
            answer = self._checked(await self._client.post(self._all, found, CALL_LIMIT))
            log.warning("%s: was deleted; created again", self._path)
        if answer["spec"].get("holderIdentity") != self.identity:
            raise ApiServerError(f"{self._path}: an answer that is not what was written")
        self.holder, self._renewed, self._said = self.identity, sent, ""
        self._written = answer

    async def _claim(self, sent: float) -> dict[str, Any] | None:
        """Return the lease as it is, for us to write; None while another may act."""
        try:
            found = await self._get(CALL_LIMIT)
        except ApiServerError as error:
            if error.status != 404:
                self._missing = float("inf")  # it may have been here meanwhile
                raise
            self._missing = min(self._missing, sent)
            if not self.is_held and sent < self._missing + DURATION:
                return None  # who held it does not know yet
            return {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name},
                "spec": {},
            }
        self._missing = float("inf")
        self.holder = str(found["spec"].get("holderIdentity") or "")
        version = str(found["metadata"]["resourceVersion"])
        if version != self._seen[0]:
            self._seen = version, self._clock()
        if self.holder not in ("", self.identity) and sent < self._seen[1] + DURATION:
            return None
        return found

    async def _get(self, timeout: float) -> dict[str, Any]:
        return self._checked(await self._client.get(self._path, timeout))

    def _checked(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return a lease with a spec; an answer of a proxy's must not make anybody a leader."""
        spec = found["spec"] = found.get("spec") or {}
        if not isinstance(spec, dict) or not (found.get("metadata") or {}).get("resourceVersion"):
            raise ApiServerError(f"{self._path}: an answer that is no Lease")
        return found

    def _claimed(self, spec: dict[str, Any]) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_new = self.holder != self.identity
        return {
            **spec,
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(DURATION),
            "renewTime": now,
            "acquireTime": now if is_new else spec.get("acquireTime", now),
            "leaseTransitions": (spec.get("leaseTransitions") or 0) + is_new,
        }
