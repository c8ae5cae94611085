"""An engine on a host of its own, which a test may hang, kill and start again.

The host is a network namespace at the other end of a cable: its addresses, ports and iptables are
its own, and this machine's engine notices nothing of it. Files and cgroups are this machine's.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support import caretaker
from tests.support import engine as engines
from tests.support.engine import Unavailable, docker

PROGRAMS = ("containerd", "dockerd", "docker", "iptables", "ip", "nsenter", "openssl")
PORT = 2376

CONTAINERD = """\
version = 2
root = "{0}/containerd"
state = "{0}/containerd-run"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{0}/containerd.sock"
"""
"""Of its own, as on a real host: the one that an engine starts by itself dies with it."""


class Host:
    """`url` and `tcp` lead to its engine, `address` to what its containers publish.

    `tls` is a folder of folders with ca.pem, cert.pem and key.pem: what `client` presents the
    engine knows, what `unknown` presents it does not, and `misled` does not know the engine.
    """

    def __init__(self, scratch):
        number = os.getpid() % (1 << 14)  # 198.18.0.0/15 is for tests of networks (RFC 2544)
        network = f"198.18.{number >> 6}"
        self.name = f"roma-{os.getpid()}"
        self.gateway, self.address = (f"{network}.{(number % 64) * 4 + i}" for i in (1, 2))
        self.url = f"unix://{scratch}/engine.sock"
        self.tcp = f"tcp://{self.address}:{PORT}"
        self.tls = scratch / "tls"
        self._scratch = scratch
        self._containerd = self._daemon = None
        self._images = set()

    def start(self):
        """Start the engine, where it does not run, and wait until it answers."""
        if self._containerd is None:
            file = self._scratch / "containerd.toml"
            file.write_text(CONTAINERD.format(self._scratch))
            with (self._scratch / "containerd.log").open("wb") as log:
                self._containerd = subprocess.Popen(
                    ["containerd", "--config", file], stderr=log, start_new_session=True
                )
        if self._daemon is not None and self._daemon.poll() is None:
            return
        own = self.tls / "engine"
        command = [
            *("nsenter", f"--net=/run/netns/{self.name}", "dockerd", "--live-restore"),
            *(f"--host={self.url}", f"--host={self.tcp}", "--tlsverify"),
            *(f"--tlscacert={own}/ca.pem", f"--tlscert={own}/cert.pem", f"--tlskey={own}/key.pem"),
            f"--containerd={self._scratch}/containerd.sock",
            *(f"--data-root={self._scratch}/data", f"--exec-root={self._scratch}/run"),
            f"--pidfile={self._scratch}/pid",
        ]
        self._daemon = engines.launch(command, self._scratch / "log", self.url)

    def kill(self):
        """Kill the engine; containers go on."""
        self._daemon.kill()
        self._daemon.wait()

    @contextmanager
    def hung(self):
        """Keep the engine from doing anything until the block ends."""
        self._daemon.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._daemon.send_signal(signal.SIGCONT)

    def docker(self, *arguments):
        """Run a docker command on this engine."""
        return docker("--host", self.url, *arguments)

    def bring(self, image):
        """Copy an image of the machine's engine."""
        if image in self._images:
            return
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saving:
            load = ["docker", "--host", self.url, "load", "--quiet"]
            subprocess.run(load, stdin=saving.stdout, check=True, capture_output=True)
        self._images.add(image)

    def clear(self):
        """Remove all containers; return the names that there were."""
        self.start()
        names = self.docker("ps", "--all", "--format", "{{.Names}}").split()
        if names:
            self.docker("rm", "--force", "--volumes", *names)
        return names

    def stop(self):
        """Stop the engine for good, with all it has started, however it is."""
        if self._daemon is not None and self._daemon.poll() is None:
            with contextlib.suppress(AssertionError):
                self.clear()
            engines.stop(self._daemon)
        if self._containerd is not None:
            engines.stop(self._containerd)
        caretaker.sweep(self._scratch)  # however they ended


@contextmanager
def host():
    """Run such a host until the block ends; Unavailable where that fails."""
    if os.geteuid() != 0:
        raise Unavailable("only root can make a network namespace and start an engine in it")
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise Unavailable(f"missing for an engine of our own: {', '.join(missing)}")
    with ExitStack() as stack:
        scratch = Path(tempfile.mkdtemp(prefix="roma-host-", dir=engines.SCRATCH))
        caretaker.expect("directory", scratch)
        stack.callback(shutil.rmtree, scratch)
        made = Host(scratch)
        stack.enter_context(_network(made))
        _certificates(made)
        stack.callback(made.stop)
        made.start()
        yield made


@contextmanager
def _network(host):
    caretaker.expect("netns", host.name)
    inside, outside = f"{host.name}i", f"{host.name}o"
    _ip("netns", "add", host.name)
    try:
        _ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", host.name)
        _ip("address", "add", f"{host.gateway}/30", "dev", outside)
        _ip("link", "set", outside, "up")
        _ip("-n", host.name, "address", "add", f"{host.address}/30", "dev", inside)
        for device in ("lo", inside):
            _ip("-n", host.name, "link", "set", device, "up")
        yield
    finally:
        _ip("netns", "delete", host.name)  # and the cable with it


def _ip(*arguments):
    done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise Unavailable(f"ip {' '.join(arguments)}: {done.stderr}")


def _certificates(host):
    """Make one authority for the engine and its clients, and one that neither knows."""
    ours, other = host.tls / "ours", host.tls / "other"
    for authority in (ours, other):
        _certificate(authority, "authority", None, "basicConstraints=critical,CA:true")
    server = [f"subjectAltName=IP:{host.address}", "extendedKeyUsage=serverAuth"]
    client = ["extendedKeyUsage=clientAuth"]
    for name, signer, trusted, extensions in (
        ("engine", ours, ours, server),
        ("client", ours, ours, client),
        ("unknown", other, ours, client),
        ("misled", ours, other, client),
    ):
        _certificate(host.tls / name, name, signer, *extensions)
        shutil.copy(trusted / "cert.pem", host.tls / name / "ca.pem")


def _certificate(folder, name, signer, *extensions):
    folder.mkdir(parents=True)
    options = [option for extension in extensions for option in ("-addext", extension)]
    if signer is not None:
        options += ["-CA", signer / "cert.pem", "-CAkey", signer / "key.pem"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    subprocess.run(
        ["openssl", "req", "-x509", *key, *files, "-subj", f"/CN={name}", "-days", "2", *options],
        check=True,
        capture_output=True,
    )
