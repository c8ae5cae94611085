"""A stand-in for prometheus-adapter: Prometheus' answers as the external metrics API.

The API server's aggregator calls it. It takes the adapter's own `externalRules`, and of them what
the documentation uses: a name and a query with label matchers. Values are rounded down to
thousandths, as the adapter does.
"""

import base64
import contextlib
import ssl
from datetime import UTC, datetime

import trustme
from aiohttp import ClientSession, web

VERSION = "external.metrics.k8s.io/v1beta1"
ROOT = f"/apis/{VERSION}"
NAME, NAMESPACE = "external-metrics", "default"


class Adapter:
    """Serves `rules` at `host`.

    `answers` are the values that it has given, oldest first; `service` is the APIService's name.
    """

    def __init__(self, rules, prometheus, host):
        self._queries = {rule["name"]["as"]: rule["metricsQuery"] for rule in rules}
        self._prometheus = prometheus
        self._host = host
        self._authority = trustme.CA()
        self.answers = []
        self.port = 0
        group, version = VERSION.split("/")
        self.service = f"{version}.{group}"

    @contextlib.asynccontextmanager
    async def running(self):
        """Serve, with a certificate for the Service's name."""
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._authority.issue_cert(f"{NAME}.{NAMESPACE}.svc").configure_cert(tls)
        application = web.Application()
        application.router.add_get(ROOT, self._resources)
        application.router.add_get(f"{ROOT}/namespaces/{{namespace}}/{{metric}}", self._values)
        runner = web.AppRunner(application)
        await runner.setup()
        async with ClientSession() as self._session:
            try:
                site = web.TCPSite(runner, self._host, 0, ssl_context=tls)
                await site.start()
                self.port = runner.addresses[0][1]
                yield self
            finally:
                await runner.cleanup()

    def objects(self):
        """Return the Service without selector, its address, and the APIService."""
        metadata = {"name": NAME, "namespace": NAMESPACE}
        bundle = self._authority.cert_pem
        group, version = VERSION.split("/")
        return [
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": metadata,
                "spec": {"ports": [{"name": "https", "port": 443, "targetPort": self.port}]},
            },
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {**metadata, "labels": {"kubernetes.io/service-name": NAME}},
                "addressType": "IPv4",
                "endpoints": [{"addresses": [self._host], "conditions": {"ready": True}}],
                "ports": [{"name": "https", "port": self.port, "protocol": "TCP"}],
            },
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": self.service},
                "spec": {
                    "group": group,
                    "version": version,
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                    "service": {"name": NAME, "namespace": NAMESPACE, "port": 443},
                    "caBundle": base64.b64encode(bundle.bytes()).decode(),
                },
            },
        ]

    async def _resources(self, _):
        return web.json_response(
            {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": VERSION,
                "resources": [
                    {
                        "name": name,
                        "singularName": "",
                        "namespaced": True,
                        "kind": "ExternalMetricValueList",
                        "verbs": ["get"],
                    }
                    for name in self._queries
                ],
            }
        )

    async def _values(self, request):
        metric = request.match_info["metric"]
        selector = [part.split("=") for part in request.query["labelSelector"].split(",")]
        matchers = ",".join(f'{label}="{value}"' for label, value in selector)
        query = self._queries[metric].replace("<<.LabelMatchers>>", matchers)
        data = await self._prometheus.get(self._session, "query", query=query)
        found = [] if data is None else data["result"]
        self.answers += [float(sample["value"][1]) for sample in found]
        return web.json_response(
            {
                "kind": "ExternalMetricValueList",
                "apiVersion": VERSION,
                "metadata": {},
                "items": [
                    {
                        "metricName": metric,
                        "metricLabels": sample["metric"],
                        "timestamp": f"{datetime.fromtimestamp(sample['value'][0], UTC):%FT%TZ}",
                        "value": f"{int(1000 * float(sample['value'][1]))}m",
                    }
                    for sample in found
                ],
            }
        )
