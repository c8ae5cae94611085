"""A real `roma up` whose models are containers, and what the kernel grants them."""

import asyncio
import contextlib
import os

from roma.domain.errors import ActuationError
from supervisor.cgroups import container_group, container_hierarchy
from tests.support.engine import docker
from tests.support.up import Up, write_config


def two_models(directory, kind, image, *, control=None, **engine):
    """Write a roma.yaml for models `a` and `b`, containers of `image`; return its path.

    `kind` tells this deployment's name from other tests', `engine` adds to its `docker` section.
    """
    model = directory / "model"
    model.mkdir()
    docker = {"server": "roma", "image": image, "run_dir": str(directory), **engine}
    return write_config(
        directory,
        dict.fromkeys("ab", model),
        name=f"{kind}-{os.getpid()}",
        response_time=1.0,
        worker={"backend": "docker", "docker": docker},
        control=control,
    )


class DockerUp(Up):
    """A deployment whose models are containers; `docker` runs a command on their engine."""

    def __init__(self, file, docker=docker):
        super().__init__(file)
        self._docker = docker

    def container(self, model):
        return f"{self.config.name}-local-{model}"

    def inspect(self, model, field):
        return self._docker("inspect", "-f", f"{{{{{field}}}}}", self.container(model)).strip()

    def id(self, model):
        return self.inspect(model, ".Id")

    def quota(self, model, container=None):
        """The cores that the kernel grants; None while the container has no cgroup.

        With `container`, its id, no engine is asked.
        """
        container = container or self.id(model)
        group = container_group(container_hierarchy(), container, self.config.control.cfs_period)
        try:
            return None if group is None else group.read().cores
        except ActuationError:  # it is just being restarted
            return None

    def executable(self, model):
        return self.state["executables"][f"{model}@local"]

    @contextlib.asynccontextmanager
    async def under_load(self, rates, bodies, sla=1.0):
        """Keep the load on until the block ends; no request may be lost or fail meanwhile."""
        stop = asyncio.Event()

        async def keep():
            seed = 0
            while not stop.is_set():
                seed += 10
                report = await self.load(rates, bodies, 2, sla=sla, seed=seed)
                assert balanced(report).failed == 0, self.tail()

        keeping = asyncio.create_task(keep())
        try:
            yield keeping
        finally:
            stop.set()
            await keeping


def balanced(report):
    """Return a report's total, once its counts are known to add up."""
    total = report.total
    assert total.lost == 0
    assert total.sent == total.answered + total.rejected + total.failed + total.invalid
    return total
