"""An API server of Kubernetes for tests of faults: pods, their resize, watches and one Lease.

It follows the API's rules as far as the tests need them (docs/decisions/0022): a real one is in
tests/system/kubernetes. `kubelet` says if a limit comes into force at once.
"""

import asyncio
import copy
import json

from aiohttp import web

PODS = "/api/v1/namespaces/{namespace}/pods"
NODES = "/api/v1/nodes"
LIMITS = "/api/v1/namespaces/{namespace}/limitranges"
SCALE = "/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
LEASE = f"{LEASES}/{{name}}"


def pod(name, model="m", node="node-a", ip="127.0.0.1", limit="1", request="20m"):
    """Return a running pod."""
    resources = {"limits": {"cpu": limit}, "requests": {"cpu": request}}
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-of-{name}",
            "generation": 1,
            "labels": {"roma.dev/managed": "true", "roma.dev/model": model},
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": "model-server", "resources": copy.deepcopy(resources)}],
        },
        "status": {
            "phase": "Running",
            "podIP": ip,
            "observedGeneration": 1,
            "qosClass": "Burstable",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [
                {"name": "model-server", "restartCount": 0, "resources": resources}
            ],
        },
    }


class FakeApiServer:
    """Pods and a lease; `patches` are the limits asked for, `calls` the paths."""

    def __init__(self):
        self.pods = {}
        self.nodes = {}
        self.limit_ranges = []
        self.replicas = {}
        """Replicas of Deployments by name."""
        self.lease = {"metadata": {"name": "l", "resourceVersion": "1"}, "spec": {}}
        self.version = 1
        self.oldest = 0
        self.kubelet = True
        self.refusals = []
        """Answers (status, message) to the next PATCHes."""
        self.release = {"major": "1", "minor": "36", "gitVersion": "v1.36.2"}
        self.listed = self.put_lease = None
        """Answers to lists and to a written lease, in place of the right ones."""
        self.odd = ()
        """Sent once before the next event; () is none."""
        self.is_down = False
        self.down_code = 503
        self.retry_after = ""
        self.delay = 0.0
        self.patches = []
        self.at_once = self.most_at_once = 0
        self.lists = 0
        self.watches = 0
        self._events = []
        self._news = asyncio.Event()

    async def start(self, port, tls=None):
        """Listen on a port of this machine, with the certificate of a context."""
        app = web.Application()
        app.router.add_get(PODS, self._get)
        app.router.add_get(NODES, self._get)
        app.router.add_get(LIMITS, self._get_limits)
        app.router.add_patch(PODS + "/{name}/resize", self._patch)
        app.router.add_get(SCALE, self._get_scale)
        app.router.add_patch(SCALE, self._patch_scale)
        app.router.add_get("/version", self._get_version)
        app.router.add_get(LEASE, self._get_lease)
        app.router.add_put(LEASE, self._put_lease)
        app.router.add_post(LEASES, self._post_lease)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port, ssl_context=tls).start()
        self.url = f"http{'' if tls is None else 's'}://127.0.0.1:{port}"

    async def stop(self):
        await self._runner.cleanup()

    def put(self, found, kind="MODIFIED"):
        """Store a pod, and tell the watches."""
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        self.pods[found["metadata"]["name"]] = found
        self._tell({"type": kind, "object": copy.deepcopy(found)})

    def delete(self, name):
        """Remove a pod."""
        self.version += 1
        found = self.pods.pop(name)
        found["metadata"]["resourceVersion"] = str(self.version)
        self._tell({"type": "DELETED", "object": found})

    def put_node(self, name, **labels):
        """Add a node."""
        self.version += 1
        meta = {"name": name, "labels": labels, "resourceVersion": str(self.version)}
        self.nodes[name] = {"metadata": meta}
        self._tell({"type": "ADDED", "object": self.nodes[name]}, NODES)

    def delete_node(self, name):
        """Remove a node."""
        self.version += 1
        found = self.nodes.pop(name)
        found["metadata"]["resourceVersion"] = str(self.version)
        self._tell({"type": "DELETED", "object": found}, NODES)

    def tell(self, event):
        """Send an event to the watches."""
        self._tell(event)

    def forget(self):
        """Make every version so far too old to watch from, and end the watches."""
        self.oldest = self.version
        self._tell(None)

    def settle(self, name):
        """Be the kubelet: put the specified limit of a pod into force."""
        found = self.pods[name]
        resources = copy.deepcopy(found["spec"]["containers"][0]["resources"])
        found["status"]["containerStatuses"][0]["resources"] = resources
        found["status"]["observedGeneration"] = found["metadata"]["generation"]
        self.put(found)

    def limit(self, name):
        """Return the specified limit of a pod."""
        return self.pods[name]["spec"]["containers"][0]["resources"]["limits"]["cpu"]

    def _tell(self, event, path=PODS):
        self._events.append((path, event))
        woken, self._news = self._news, asyncio.Event()
        woken.set()

    async def _get(self, request):
        if self.is_down:
            return _status(self.down_code, "the fake is down", self.retry_after)
        if request.query.get("watch"):
            return await self._watch(request)
        self.lists += 1
        if self.listed is not None:
            return web.json_response(self.listed)
        listed = {"metadata": {"resourceVersion": str(self.version)}}
        stored = self.nodes if request.path == NODES else self.pods
        items = [one for one in stored.values() if _selected(one, request)]
        return web.json_response({**listed, "items": items})

    async def _watch(self, request):
        self.watches += 1
        asked = int(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        if asked < self.oldest:
            status = {"kind": "Status", "code": 410, "message": "too old resource version"}
            await _send(response, {"type": "ERROR", "object": status})
            return response
        seen, began = 0, len(self._events)
        while True:
            news, events = self._news, list(enumerate(self._events))[seen:]
            seen = len(self._events)
            for number, (path, event) in events:
                if event is None and number < began:
                    continue  # it ended the watches of its time
                if event is not None and (path == NODES) != (request.path == NODES):
                    continue
                if event is not None and not _selected(event["object"], request):
                    continue
                if event is None or self.is_down:
                    return response
                version = event["object"].get("metadata", {}).get("resourceVersion")
                if version is None or int(version) > asked:
                    if self.odd != ():
                        odd, self.odd = self.odd, ()
                        await _send(response, odd)
                    await _send(response, event)
            await news.wait()

    async def _patch(self, request):
        assert request.content_type == "application/strategic-merge-patch+json"
        name = request.match_info["name"]
        if self.is_down:
            return _status(self.down_code, "the fake is down")
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(self.delay)
        self.at_once -= 1
        body = await request.json()
        (container,) = body["spec"]["containers"]
        assert container["name"] == "model-server"
        self.patches.append((name, container["resources"]["limits"]["cpu"]))
        if self.refusals:
            return _status(*self.refusals.pop(0))
        if name not in self.pods:
            return _status(404, f'pods "{name}" not found')
        found = self.pods[name]
        own = found["spec"]["containers"][0]["resources"]["limits"]
        request = found["spec"]["containers"][0]["resources"]["requests"]["cpu"]
        if container["resources"]["limits"]["cpu"] == request:
            return _status(422, "Pod QOS Class may not change as a result of resizing")
        if own["cpu"] != container["resources"]["limits"]["cpu"]:
            own["cpu"] = container["resources"]["limits"]["cpu"]
            found["metadata"]["generation"] += 1
        self.put(found)
        answer = copy.deepcopy(found)
        if self.kubelet:
            self.settle(name)
        return web.json_response(answer)

    async def _get_limits(self, _):
        return web.json_response({"items": self.limit_ranges})

    async def _get_scale(self, request):
        name = request.match_info["name"]
        if name not in self.replicas:
            return _status(404, f'deployments.apps "{name}" not found')
        count = self.replicas[name]
        return web.json_response({"kind": "Scale", "spec": {"replicas": count} if count else {}})

    async def _patch_scale(self, request):
        if self.refusals:
            return _status(*self.refusals.pop(0))
        self.replicas[request.match_info["name"]] = (await request.json())["spec"]["replicas"]
        return await self._get_scale(request)

    async def _get_version(self, _):
        return _status(503, "the fake is down") if self.is_down else web.json_response(self.release)

    async def _get_lease(self, _):
        if self.is_down:
            return _status(503, "the fake is down")
        return _status(404, "not found") if self.lease is None else web.json_response(self.lease)

    async def _post_lease(self, request):
        if self.lease is not None:
            return _status(409, "already exists")
        self.lease = await request.json()
        self.lease["metadata"]["resourceVersion"] = "1"
        return web.json_response(self.lease, status=201)

    async def _put_lease(self, request):
        body = await request.json()
        if self.is_down:
            return _status(503, "the fake is down")
        if self.lease is None:
            return _status(404, "not found")
        if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            return _status(409, "the object has been modified")
        if self.put_lease is not None:
            return web.json_response(self.put_lease)
        version = int(self.lease["metadata"]["resourceVersion"]) + 1
        self.lease = body
        self.lease["metadata"]["resourceVersion"] = str(version)
        return web.json_response(self.lease)


def _selected(found, request):
    """Return whether an object has the labels that are asked for, all as KEY=VALUE."""
    asked = filter(None, request.query.get("labelSelector", "").split(","))
    labels = found.get("metadata", {}).get("labels")
    return labels is None or all(labels.get(k) == v for k, v in (one.split("=") for one in asked))


async def _send(response, event):
    await response.write(json.dumps(event).encode() + b"\n")


def _status(code, message, retry_after=""):
    headers = {"Retry-After": retry_after} if retry_after else {}
    found = {"kind": "Status", "code": code, "message": message}
    return web.json_response(found, status=code, headers=headers)
