"""Pods as the API server describes them, reduced to what routing and control need. No I/O.

Field names are those of the API's core/v1 Pod; in-place resize: KEP-1287.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from roma.kubernetes.quantity import millicores

MODEL_LABEL: Final = "roma.dev/model"
"""Label of a pod with the name of the model that it serves."""

OWN_ADDRESS: Final = "ROMA_POD_IP"
"""Environment variable with the address at which others reach this pod (downward API)."""

CPU_PATH: Final = "/roma/v1/cpu"
"""Path at which the embedded model server reports the CPU accounting of its own cgroup."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod with one model server; CPU in millicores, None where it is not set.

    `limit` is what the specification asks for, `granted` what the kubelet reports. `observed` is
    the generation of the specification that the kubelet has acted on, None if it does not say.
    `resize` says why a change of the limit does not come into force, e.g. `Deferred: …`. `fault`
    says why limits cannot be changed.
    """

    name: str
    uid: str
    node: str
    ip: str
    model: str
    is_running: bool
    is_ready: bool
    is_leaving: bool
    generation: int
    observed: int | None
    request: int | None
    limit: int | None
    granted: int | None
    host: str = ""
    """Address of its node."""
    is_up: bool = True
    """True if its container runs now; a pod that runs may have one that crashed."""
    restarts: int = 0
    resize: str = ""
    fault: str = ""

    @property
    def is_served(self) -> bool:
        """True if requests may be sent to it, as far as the API server knows."""
        return self.is_running and not self.is_leaving and bool(self.ip)

    @property
    def is_settled(self) -> bool:
        """True if the kubelet has put the specified limit into force."""
        has_seen = self.observed is None or self.observed >= self.generation
        return has_seen and not self.resize and self.granted == self.limit

    @property
    def least(self) -> int:
        """The lowest limit that is accepted: one equal to the request may change the QoS class."""
        return (self.request or 0) + 1


def parse(found: Mapping[str, Any], container: str) -> Pod:
    """Return a pod from its JSON object; `container` is the name of the one that serves.

    Raises ValueError for an object that is no pod.
    """
    try:
        meta, spec, status = found["metadata"], found["spec"], found.get("status") or {}
        ours = next((c for c in spec["containers"] if c["name"] == container), None)
        states = status.get("containerStatuses") or ()
        state: Mapping[str, Any] = next((s for s in states if s["name"] == container), {})
        resources = (ours or {}).get("resources") or {}
        conditions = {c["type"]: c for c in status.get("conditions") or ()}
        return Pod(
            name=meta["name"],
            uid=meta["uid"],
            node=spec.get("nodeName") or "",
            ip=status.get("podIP") or "",
            model=(meta.get("labels") or {}).get(MODEL_LABEL, ""),
            is_running=status.get("phase") == "Running",
            is_ready=conditions.get("Ready", {}).get("status") == "True",
            is_leaving=meta.get("deletionTimestamp") is not None,
            generation=meta.get("generation") or 0,
            # Kubelets report it since 1.34.
            observed=status.get("observedGeneration"),
            request=_cpu(resources, "requests"),
            limit=_cpu(resources, "limits"),
            granted=_cpu(state.get("resources") or {}, "limits"),
            host=status.get("hostIP") or "",
            is_up="running" in (state.get("state") or {"running": None}),
            restarts=state.get("restartCount") or 0,
            resize=_resize(conditions),
            fault=_fault(ours, container, status.get("qosClass") or ""),
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"an object that is no pod: {error!r}") from error


def _cpu(resources: Mapping[str, Any], kind: str) -> int | None:
    text = (resources.get(kind) or {}).get("cpu")
    return None if text is None else millicores(str(text))


def _resize(conditions: Mapping[str, Mapping[str, Any]]) -> str:
    """Return why a resize does not come into force, as the kubelet says."""
    for kind in ("PodResizePending", "PodResizeInProgress"):
        condition = conditions.get(kind, {})
        reason, message = condition.get("reason"), condition.get("message")
        if condition.get("status") == "True" and reason:
            return f"{reason}: {message}" if message else str(reason)
    return ""


def _fault(container: Mapping[str, Any] | None, name: str, qos: str) -> str:
    if container is None:
        return f"it has no container {name}"
    resources = container.get("resources") or {}
    if _cpu(resources, "limits") is None:
        # Of a Burstable pod one could be added, but never be removed again.
        return f"its container {name} has no CPU limit: its template must have one, to begin with"
    if qos == "Guaranteed":
        return "its QoS class is Guaranteed, which a limit above the request would change"
    for policy in container.get("resizePolicy") or ():
        if policy["resourceName"] == "cpu" and policy["restartPolicy"] != "NotRequired":
            return f"its container {name} restarts at each resize (resizePolicy)"
    return ""
