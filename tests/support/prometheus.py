"""A real Prometheus that reads a dispatcher and a supervisor with the files that ROMA renders."""

import contextlib
import json
import re
import subprocess

from roma.deploy import grafana, monitoring


def queries(model):
    """Every query of the dashboard, as Grafana asks it for one model in all namespaces.

    A variable that may have several values is escaped as a regular expression in PromQL's quotes,
    also where it has one.
    """
    value = re.sub(r"[$^*{}\[\]'+?.()|]", r"\\\\\g<0>", model)
    # Without Kubernetes nothing has a namespace, which .* matches.
    return [
        target["expr"].replace("$model", value).replace("$namespace", ".*")
        for panel in grafana.dashboard()["panels"]
        for target in panel.get("targets", ())
    ]


class Prometheus:
    """The program, with the rendered files; only its intervals are shorter.

    `labels` are put on all that it reads, as Prometheus' operator does with a pod's namespace.
    """

    def __init__(self, directory, targets, port, labels=None):
        files = monitoring.files(targets)
        scraped = json.loads(files[monitoring.PROMETHEUS])
        scraped["global"]["scrape_interval"] = "500ms"
        for job in scraped["scrape_configs"]:
            job["static_configs"][0]["labels"] = labels or {}
        rules = json.loads(files[monitoring.ALERTS])
        for group in rules["groups"]:
            group["interval"] = "500ms"
        (directory / monitoring.PROMETHEUS).write_text(json.dumps(scraped))
        (directory / monitoring.ALERTS).write_text(json.dumps(rules))
        self._directory, self._port = directory, port
        self.url = f"http://127.0.0.1:{port}/api/v1/"
        self.log = directory / "prometheus.log"

    def __enter__(self):
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={self._directory / monitoring.PROMETHEUS}",
                    f"--storage.tsdb.path={self._directory / 'tsdb'}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                ],
                stdout=log,
                stderr=log,
            )
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(30)

    async def get(self, session, path, **parameters):
        """Return the data that an API path answers with, None while it does not."""
        with contextlib.suppress(OSError):
            async with session.get(self.url + path, params=parameters) as response:
                if response.status == 503:  # it has only begun to listen
                    return None
                answer = await response.json()
                assert response.status == 200, answer
                return answer["data"]
        assert self._process.poll() is None, self.log.read_text()
        return None

    async def ask(self, session, query):
        """Return a query's values by its labels' values."""
        data = await self.get(session, "query", query=query)
        return {tuple(s["metric"].values()): float(s["value"][1]) for s in data["result"]}

    async def number(self, session, query):
        """Return the one value of a query; None without one."""
        values = await self.ask(session, query)
        assert len(values) < 2, values
        return next(iter(values.values()), None)

    async def total(self, session, model, metric, **where):
        """Return the sum of a model's series with these labels."""
        labels = ", ".join(f'{k}="{v}"' for k, v in {"model": model, **where}.items())
        return await self.number(session, f"sum(roma_{metric}{{{labels}}})")
