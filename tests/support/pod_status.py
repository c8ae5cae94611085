"""A pod's status as its kubelet would report it, and meters that read nothing of it."""


def running(pod, *, granted=None, ip="127.0.0.1", **more):
    """Return the status of a pod that is ready; `granted` is its CPU limit in force, if another."""
    resources = pod["spec"]["containers"][0]["resources"]
    if granted is not None:
        resources = {**resources, "limits": {"cpu": granted}}
    state = {
        "name": "model-server",
        "image": "none",
        "imageID": "",
        "ready": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        "resources": resources,
    }
    return {
        "phase": "Running",
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "observedGeneration": pod["metadata"]["generation"],
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [state],
        **more,
    }


class NoMeters:
    """Reads nothing."""

    def read(self, pods):
        return dict.fromkeys(pods)
