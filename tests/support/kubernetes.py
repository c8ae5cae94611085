"""A real Kubernetes for tests: etcd, kube-apiserver, and a node of containerd and kubelet.

The programs are built by `make kubernetes` (tools/kubernetes, tools/containerd), or found in
KUBEBUILDER_ASSETS, envtest's convention. Everything has its own root, state and socket, beside an
engine of the machine's own, and ends with the block that started it.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from roma.tools.demo.ports import free_ports
from tests.support import caretaker, node_host

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(os.environ.get("KUBEBUILDER_ASSETS", ROOT / ".cache" / "kubernetes" / "bin"))
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "helm")
NODE = ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "pause")
ADMIN = "admin-token-of-a-test-cluster"
NODE_TOKEN = "node-token-of-a-test-cluster"
SANDBOX = "roma.test/pause:1"
BRIDGE = "roma-k8s0"
START_LIMIT = 120
HPA_PERIOD = 3
"""Seconds between two decisions of a HorizontalPodAutoscaler; 15 by default."""


def missing(programs):
    """Return those of the programs that are not there."""
    others = [p for p in ("etcd", "openssl", "runc") if shutil.which(p) is None]
    return [p for p in programs if not (PROGRAMS / p).exists()] + others


class Started:
    """A program with its log, ended by pid."""

    def __init__(self, directory, name, *command, env=None):
        self.name = name
        self._command = [str(part) for part in command]
        self._log = directory / f"{name}.log"
        self._env = os.environ | (env or {})
        self.start()

    def start(self):
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._env, start_new_session=True
            )

    def kill(self):
        self.process.kill()
        self.process.wait(30)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()

    def check(self):
        assert self.process.poll() is None, f"{self.name} has ended:\n{self.tail()}"

    def tail(self):
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])


def until(condition, what, started=(), limit=START_LIMIT):
    """Wait for a condition; the limit only bounds a failing test."""
    end = time.monotonic() + limit
    while True:
        try:
            if (found := condition()) is not None and found is not False:
                return found
            why = ""
        except (OSError, subprocess.SubprocessError, AssertionError) as error:
            why = repr(error)
        for program in started:
            program.check()
        logs = "\n".join(program.tail() for program in started)
        assert time.monotonic() < end, f"not in {limit} s: {what} {why}\n{logs}"
        time.sleep(0.05)


@dataclass
class ControlPlane:
    """etcd and an API server; `url` is its address and `ca` the file with its certificate."""

    directory: Path
    url: str = ""
    ca: Path = Path()
    programs: dict[str, Started] = field(default_factory=dict)

    def kubectl(self, *arguments, stdin=None, check=True):
        """Run kubectl as an administrator; return what it prints."""
        done = subprocess.run(
            [PROGRAMS / "kubectl", "--kubeconfig", self.kubeconfig(ADMIN), *map(str, arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"kubectl {arguments}: {done.stderr}"
            return done.stdout
        return done.stdout + done.stderr

    def apply(self, *objects):
        """Apply objects, as an administrator."""
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        return self.kubectl("apply", "-f", "-", stdin=json.dumps(listed))

    def get(self, path, token=ADMIN):
        """Return the object at a path."""
        return self.call("GET", path, token=token)[1]

    def call(self, method, path, body=None, *, token=ADMIN, kind="application/json"):
        """Return status and object of a call."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": kind},
        )
        tls = ssl.create_default_context(cafile=self.ca)
        try:
            with urllib.request.urlopen(request, context=tls, timeout=10) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"{}")

    def add_node(self, name, labels=None):
        """Make a node that has no kubelet, and room for many pods."""
        meta = {"name": name, "labels": labels or {}}
        self.apply({"apiVersion": "v1", "kind": "Node", "metadata": meta})
        room = {"cpu": "640", "memory": "64Gi", "pods": "500"}
        status = {"status": {"capacity": room, "allocatable": room}}
        path, kind = f"/api/v1/nodes/{name}/status", "application/merge-patch+json"
        assert self.call("PATCH", path, status, kind=kind)[0] == 200

    def kubeconfig(self, token, namespace="default"):
        """Return the path of a kubeconfig with this token."""
        path = self.directory / f"kubeconfig-{namespace}-{token[-16:]}"
        cluster = {"server": self.url, "certificate-authority": str(self.ca)}
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "users": [{"name": "test", "user": {"token": token}}],
                    "contexts": [
                        {
                            "name": "test",
                            "context": {"cluster": "test", "user": "test", "namespace": namespace},
                        }
                    ],
                }
            )
        )
        return path

    def has_account(self, namespace):
        """Return True if the namespace has its service account, and so can have pods."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        return self.call("GET", path)[0] == 200

    def token(self, namespace, account, seconds=3600):
        """Return a token of a service account."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        status, found = self.call("POST", path, body)
        assert status == 201, found
        return found["status"]["token"]


@contextlib.contextmanager
def control_plane(directory, *, controllers=False):
    """Start etcd and an API server, and with `controllers` a scheduler and the controllers."""
    directory.mkdir(parents=True, exist_ok=True)
    caretaker.expect("directory", directory)
    etcd, peer, port = free_ports(3)
    plane = ControlPlane(directory, f"https://{address()}:{port}")
    _credentials(directory)
    programs = plane.programs
    try:
        programs["etcd"] = Started(
            directory,
            "etcd",
            "etcd",
            f"--data-dir={directory / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{etcd}",
            f"--advertise-client-urls=http://127.0.0.1:{etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync",
        )
        certificates = directory / "apiserver"
        programs["apiserver"] = Started(
            directory,
            "kube-apiserver",
            PROGRAMS / "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{etcd}",
            f"--bind-address={address()}",
            f"--advertise-address={address()}",
            f"--secure-port={port}",
            f"--cert-dir={certificates}",
            f"--token-auth-file={directory / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={directory / 'sa.key'}",
            f"--service-account-signing-key-file={directory / 'sa.key'}",
            "--allow-privileged=true",
            # For logs, exec and port-forward: there is no DNS that knows a node's name.
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={directory / 'kubelet-client.crt'}",
            f"--kubelet-client-key={directory / 'kubelet-client.key'}",
            # APIServices are called at their endpoints: there is no kube-proxy.
            "--enable-aggregator-routing=true",
        )
        plane.ca = certificates / "apiserver.crt"
        running = list(programs.values())
        until(plane.ca.exists, "the API server's certificate", running)
        until(lambda: _answers(plane), "the API server", running)
        if controllers:
            admin = plane.kubeconfig(ADMIN)
            programs["controllers"] = Started(
                directory,
                "kube-controller-manager",
                PROGRAMS / "kube-controller-manager",
                f"--kubeconfig={admin}",
                "--leader-elect=false",
                f"--service-account-private-key-file={directory / 'sa.key'}",
                f"--root-ca-file={plane.ca}",
                "--secure-port=0",
                "--use-service-account-credentials=false",
                f"--horizontal-pod-autoscaler-sync-period={HPA_PERIOD}s",
            )
            programs["scheduler"] = Started(
                directory,
                "kube-scheduler",
                PROGRAMS / "kube-scheduler",
                f"--kubeconfig={admin}",
                "--leader-elect=false",
                "--secure-port=0",
            )
            # Until then the API server forbids every pod.
            until(lambda: plane.has_account("default"), "the default service account", running)
        yield plane
    finally:
        for program in reversed(programs.values()):
            program.stop()


def address():
    """Return an address of this machine that pods can reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return probe.getsockname()[0]


def _answers(plane):
    status, _ = plane.call("GET", "/api/v1/namespaces/default")
    return status == 200


def _credentials(directory):
    (directory / "tokens.csv").write_text(
        f'{ADMIN},admin,1,"system:masters"\n{NODE_TOKEN},system:node:node-a,2,"system:nodes"\n'
    )
    key, certificate = directory / "kubelet-client.key", directory / "kubelet-client.crt"
    client = ["-keyout", key, "-out", certificate, "-subj", "/O=system:masters/CN=apiserver"]
    for command in (
        ["genrsa", "-out", directory / "sa.key", "2048"],
        ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *client],
    ):
        subprocess.run(["openssl", *command], check=True, capture_output=True)


class Node:
    """containerd and kubelet as node `name` of a control plane."""

    def __init__(self, directory, plane, name):
        self.name = name
        self.plane = plane
        self._directory = directory
        self.programs: dict[str, Started] = {}
        self.socket = directory / "c.sock"
        self.cgroup = f"roma-k8s-{os.getpid()}"
        (self.port,) = free_ports(1)
        self.ca = directory / "pki" / "kubelet.crt"

    def ctr(self, *arguments):
        """Run containerd's client in the kubelet's namespace."""
        return subprocess.run(
            [PROGRAMS / "ctr", "--address", self.socket, "--namespace", "k8s.io", *arguments],
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def start(self):
        """Start containerd and kubelet; return when the node is ready."""
        self._configure()
        caretaker.expect("link", BRIDGE)
        node_host.forwarding("--insert", BRIDGE)
        directory = self._directory
        path = {"PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
        containerd = Started(
            directory,
            "containerd",
            PROGRAMS / "containerd",
            f"--config={directory / 'containerd.toml'}",
            env=path,
        )
        self.programs["containerd"] = containerd
        until(lambda: self.ctr("version"), "containerd", [containerd])
        self._import(SANDBOX, {"pause": PROGRAMS / "pause"}, ["/pause"])
        self.programs["kubelet"] = Started(
            directory,
            "kubelet",
            PROGRAMS / "kubelet",
            f"--config={directory / 'kubelet.yaml'}",
            f"--kubeconfig={self.plane.kubeconfig(NODE_TOKEN)}",
            f"--hostname-override={self.name}",
            f"--root-dir={directory / 'kubelet'}",
            f"--cert-dir={directory / 'pki'}",
            env=path,
        )
        until(self.is_ready, "a ready node", list(self.programs.values()))

    def is_ready(self):
        """Return whether the API server shows the node as ready."""
        status, found = self.plane.call("GET", f"/api/v1/nodes/{self.name}")
        conditions = found.get("status", {}).get("conditions", ()) if status == 200 else ()
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def logs(self, namespace):
        """Return the last lines of what the containers of a namespace have said."""
        files = sorted(Path("/var/log/pods").glob(f"{namespace}_*/*/*.log"))
        tails = ("\n".join(f.read_text(errors="replace").splitlines()[-12:]) for f in files)
        return "\n".join(f"{f}:\n{tail}" for f, tail in zip(files, tails, strict=True))

    def _import(self, name, files, command):
        archive = self._directory / "image.tar"
        node_host.docker_archive(archive, name, files, command)
        self.ctr("images", "import", str(archive))

    def _configure(self):
        directory = self._directory
        network = directory / "cni"
        network.mkdir(exist_ok=True)
        for mount in node_host.cgroup_mounts():
            (mount / self.cgroup).mkdir(exist_ok=True)
        bridge = {
            "cniVersion": "1.0.0",
            "name": "roma-test",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": BRIDGE,
                    "isGateway": True,
                    "isDefaultGateway": True,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": "10.244.77.0/24"}]],
                        "dataDir": str(directory / "addresses"),
                    },
                }
            ],
        }
        (network / "10-bridge.conflist").write_text(json.dumps(bridge))
        (directory / "containerd.toml").write_text(
            f"""version = 3
root = "{directory}/root"
state = "{directory}/state"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.zfs"]
[grpc]
address = "{self.socket}"
[ttrpc]
address = "{self.socket}.ttrpc"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{SANDBOX}"
[plugins."io.containerd.cri.v1.runtime"]
netns_mounts_under_state_dir = true
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "{network}"
"""
        )
        api, health = self.port, free_ports(1)[0]
        kubelet = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "0.0.0.0",  # its node's address; who is not authorized is refused
            "port": api,
            "readOnlyPort": 0,
            "healthzPort": health,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.plane.directory / "kubelet-client.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "failSwapOn": False,
            "failCgroupV1": False,
            "enforceNodeAllocatable": [],
            "localStorageCapacityIsolation": False,
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "makeIPTablesUtilChains": False,
            "protectKernelDefaults": False,
            "registerNode": True,
            "resolvConf": "",
        }
        (directory / "kubelet.yaml").write_text(yaml.safe_dump(kubelet))

    def stop(self):
        """End the pods' containers, kubelet and containerd."""
        if "kubelet" in self.programs:
            self.programs["kubelet"].stop()
        if "containerd" in self.programs:
            with contextlib.suppress(subprocess.CalledProcessError):
                for task in self.ctr("tasks", "list", "--quiet").split():
                    with contextlib.suppress(subprocess.CalledProcessError):
                        self.ctr("tasks", "delete", "--force", task)
            self.programs["containerd"].stop()
        node_host.unmount(self._directory)
        for mount in node_host.cgroup_mounts():
            node_host.remove_groups(mount / self.cgroup)
        subprocess.run(["ip", "link", "delete", BRIDGE], check=False, capture_output=True)
        node_host.forwarding("--delete", BRIDGE)


@contextlib.contextmanager
def node(directory, plane, name="node-a"):
    """Run a node of a control plane."""
    directory.mkdir(parents=True, exist_ok=True)
    caretaker.expect("directory", directory)
    found = Node(directory, plane, name)
    try:
        found.start()
        yield found
    finally:
        found.stop()


def main():
    """Run a cluster of one node until Ctrl-C, and say how to reach it."""
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(
            tempfile.TemporaryDirectory(
                prefix="roma-k8s-", dir="/var/tmp", ignore_cleanup_errors=True
            )
        )
        plane = stack.enter_context(control_plane(Path(scratch) / "plane", controllers=True))
        found = stack.enter_context(node(Path(scratch) / "node", plane))
        sys.stdout.write(f"export KUBECONFIG={plane.kubeconfig(ADMIN)} PATH={PROGRAMS}:$PATH\n")
        sys.stdout.write(
            f"node {found.name} is ready, containerd at {found.socket}; Ctrl-C ends it\n"
        )
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
