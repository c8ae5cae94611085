"""The host of a test node: images from its files, its cgroups, mounts and packet filter."""

import contextlib
import hashlib
import json
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path


def forwarding(change, bridge):
    """Let pods reach each other: an engine of this machine may have forbidden forwarding."""
    rule = ("-i", bridge, "-o", bridge, "-j", "ACCEPT")
    subprocess.run(
        ["iptables", "--wait", change, "FORWARD", *rule], check=False, capture_output=True
    )


def cgroup_mounts():
    """Return the mount points of all cgroup hierarchies."""
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(line[1]) for line in lines if line[2] in ("cgroup", "cgroup2")]


def prefer(group):
    """Let the pods below a cgroup come before others of a busy machine, as on a node of their own."""
    for name, weight in (("cpu.shares", 16 * 1024), ("cpu.weight", 16 * 100)):
        if (group / name).exists():
            (group / name).write_text(str(weight))


def remove_groups(directory):
    """Remove a cgroup and all below it, once their processes are gone."""
    for below in sorted(directory.rglob("*"), reverse=True) if directory.exists() else ():
        if below.is_dir():
            with contextlib.suppress(OSError):
                below.rmdir()
    with contextlib.suppress(OSError):
        directory.rmdir()


def unmount(directory):
    """Unmount what containers left below a directory, the deepest first."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(f"{directory}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)


def docker_archive(path, name, files, command):
    """Write an image of one layer in the format of `docker save`."""
    layer = BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for directory in ("dev", "etc", "proc", "sys", "tmp", "usr", "lib", "lib64", "bin", "app"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for inside, outside in files.items():
            tar.add(outside, inside)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": command, "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as tar:
        for inside, content in (
            ("layer.tar", layer.getvalue()),
            ("config.json", config),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(inside)
            entry.size = len(content)
            tar.addfile(entry, BytesIO(content))
