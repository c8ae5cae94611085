"""Readings of containers from the files of their cgroups."""

from supervisor.actuators.meters import FileMeters
from supervisor.broker.containers import Container
from supervisor.cgroups import Hierarchy

IDS = {"m@w": "c0ffee" * 10, "gone@w": "dead" * 16}


class Engine:
    """Lists a container that runs, one that does not, and one of another executable."""

    async def containers(self):
        listed = {name: Container(name, i, name != "gone@w") for name, i in IDS.items()}
        return listed | {"other@w": Container("other@w", "ab" * 32, running=True)}


async def reads(meters):
    """Return a reading as the tick after a lookup has it."""
    await meters.read()
    await meters._looking
    return (await meters.read())["m@w"]


async def test_a_container_that_runs_without_a_cgroup_here_is_named_once(tmp_path, caplog):
    """As where `docker.cgroup_root` is not the host's mount."""
    meters = FileMeters(Engine(), Hierarchy(2, (tmp_path,)), list(IDS), period=0.1)
    for _ in range(3):
        assert await reads(meters) is None
    why = f"container c0ffeec0ffee has no cgroup below {tmp_path}"
    said = f"executable m@w: its CPU use is unknown: {why}"
    assert [record.getMessage() for record in caplog.records] == [said]
    group = tmp_path / "docker" / IDS["m@w"]
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("50000 100000\n")
    (group / "cpu.stat").write_text("usage_usec 0\n")
    assert (await reads(meters)).cores == 0.5
    await meters.close()
