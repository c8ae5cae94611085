"""A real Docker engine and the images that tests run on it. Nothing comes from a registry.

An engine that answers is used and left as it is, with its images: they are the cache. Where none
answers, root may start one in a scratch folder, which takes its images along when it stops.
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from tests.support import caretaker

ROOT = Path(__file__).parents[2]
SOCKET = Path("/var/run/docker.sock")
SCRATCH = "/var/tmp"
"""Images take gigabytes and /tmp may be memory; short, because a socket's path has 108 bytes."""

BASE = "roma-test/base:bookworm"
SUITE, PACKAGES = "bookworm", "python3,python3-venv,ca-certificates"

SOURCES = ("roma", "controllers", "dispatcher", "supervisor")
INPUTS = ("pyproject.toml", "constraints.txt", "compose/Dockerfile", "compose/build.sh")
LABEL = "roma.test.sources"

_ENVIRONMENT = os.environ | {"DOCKER_HOST": f"unix://{SOCKET}"}


class Unavailable(Exception):
    """This machine has no engine, or cannot make an image; the message says why."""


def docker(*arguments):
    """Run a docker command; return what it prints, without the last line break."""
    done = _run("docker", *arguments)
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr or done.stdout}"
    return done.stdout.rstrip("\n")


def logs(container):
    """What a container has said."""
    done = _run("docker", "logs", "--tail=50", container)
    return done.stdout + done.stderr


def available(url=f"unix://{SOCKET}"):
    """Whether an engine answers."""
    if shutil.which("docker") is None:
        return False
    return _run("docker", "--host", url, "version").returncode == 0


@contextmanager
def started():
    """Run an engine of our own on SOCKET until the block ends; Unavailable where that fails."""
    if os.geteuid() != 0:
        raise Unavailable(f"no engine answers on {SOCKET}, and only root can start one")
    missing = [name for name in ("dockerd", "docker", "iptables") if shutil.which(name) is None]
    if missing:
        raise Unavailable(f"no engine answers on {SOCKET}; to start one: {', '.join(missing)}")
    scratch = Path(tempfile.mkdtemp(prefix="roma-engine-", dir=SCRATCH))
    caretaker.expect("directory", scratch)
    try:
        command = [
            "dockerd",
            f"--host=unix://{SOCKET}",
            f"--data-root={scratch}/data",
            f"--exec-root={scratch}/run",
            f"--pidfile={scratch}/pid",
        ]
        daemon = launch(command, scratch / "log", f"unix://{SOCKET}")
        try:
            yield daemon
        finally:
            stop(daemon)
    finally:
        # The engine mounts its data on itself, and leaves that where mounts are not shared.
        caretaker.sweep(scratch)
        caretaker.discard(scratch)


def launch(command, log, url):
    """Start an engine; return its process once it answers at `url`."""
    with log.open("ab") as output:
        # In a session of its own: Ctrl-C is pytest's, and fixtures remove containers after it.
        daemon = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        _wait_until_ready(daemon, log, url)
    except BaseException:  # Ctrl-C too: nobody else knows of this process
        stop(daemon)
        raise
    return daemon


def _wait_until_ready(daemon, log, url):
    deadline = time.monotonic() + 60
    while not available(url):
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise Unavailable(f"dockerd did not get ready:\n{_tail(log.read_text())}")
        time.sleep(0.1)


def stop(daemon):
    """End an engine; one that hangs too."""
    daemon.terminate()
    daemon.send_signal(signal.SIGCONT)
    try:
        daemon.wait(60)  # it stops its containers first
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def base_image():
    """Return a Debian with Python, made here with debootstrap if the engine has none."""
    with _one_at_a_time():
        if _image_id(BASE) is None:
            _make_base()
    return BASE


def _make_base():
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise Unavailable(f"there is no image {BASE}, and making it takes root and debootstrap")
    with tempfile.TemporaryDirectory(prefix="roma-base-", dir=SCRATCH) as scratch:
        caretaker.expect("directory", scratch)
        # A folder inside: the scratch folder's mode 0700 would become that of the image's /.
        root = Path(scratch) / "root"
        made = _run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(root))
        if made.returncode != 0:
            raise Unavailable(f"debootstrap failed:\n{_tail(made.stdout + made.stderr)}")
        not_needed = [f"--exclude=./{p}/*" for p in ("dev", "var/cache/apt", "var/lib/apt/lists")]
        archive = Path(scratch) / "root.tar"
        subprocess.run(["tar", "-C", root, *not_needed, "-cf", archive, "."], check=True)
        docker("import", str(archive), BASE)


def image(name):
    """Return `roma/NAME:test` (control or model-server) of the working tree, built if it changed.

    In CI our wheel is compiled, as it is shipped; elsewhere it is not: seconds instead of a minute.
    """
    tag = f"roma/{name}:test"
    options = [] if os.environ.get("CI") else ["--plain"]
    base = base_image()
    with _one_at_a_time():
        label = _digest(*options, _image_id(base))
        before = _image_id(tag)
        if before is not None and _label(tag) == label:
            return tag
        _build(
            "--offline", "--base", base, "--target", name, "--tag", "test", *options, label=label
        )
        if before not in (None, _image_id(tag)):
            _run("docker", "image", "rm", before)  # refused while something still uses it
    return tag


def standin(name, base, **environment):
    """Return an image of the stand-in model server with these settings."""
    tag = f"roma-test/{name}"
    lines = [f"FROM {base}", "COPY standin.py /", "USER 65534"]
    lines += [f"ENV {key}={value}" for key, value in environment.items()]
    lines += ['ENTRYPOINT ["python3", "/standin.py"]', ""]
    with tempfile.TemporaryDirectory() as context:
        shutil.copy(Path(__file__).with_name("standin.py"), context)
        Path(context, "Dockerfile").write_text("\n".join(lines))
        docker("build", "--quiet", "--tag", tag, context)
    return tag


def prometheus(base):
    """Return an image that runs this machine's own Prometheus, called as the official one is."""
    program = shutil.which("prometheus")
    if program is None:
        raise Unavailable("prometheus is not installed")
    lines = [f"FROM {base}", "COPY prometheus /bin/", 'ENTRYPOINT ["prometheus"]', ""]
    with tempfile.TemporaryDirectory(dir=SCRATCH) as context:
        shutil.copy(program, context)
        Path(context, "Dockerfile").write_text("\n".join(lines))
        docker("build", "--quiet", "--tag", "roma-test/prometheus", context)
    return "roma-test/prometheus"


def _build(*options, label):
    done = _run(str(ROOT / "compose/build.sh"), *options, "--", f"--label={LABEL}={label}")
    assert done.returncode == 0, f"compose/build.sh:\n{_tail(done.stdout + done.stderr)}"


def _digest(*more):
    """Identify what an image is made of."""
    digest = hashlib.sha256(repr(more).encode())
    files = [path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")]
    for path in sorted([*files, *(ROOT / name for name in INPUTS)]):
        digest.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _image_id(tag):
    done = _run("docker", "image", "inspect", "--format", "{{.Id}}", tag)
    return done.stdout.strip() if done.returncode == 0 else None


def _label(tag):
    return docker("image", "inspect", "--format", f'{{{{index .Config.Labels "{LABEL}"}}}}', tag)


@contextmanager
def _one_at_a_time():
    """Two test sessions, of two checkouts even, must not build the same image at once."""
    with Path(SCRATCH, f"roma-engine-{os.geteuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(*command):
    return subprocess.run(command, check=False, capture_output=True, text=True, env=_ENVIRONMENT)


def _tail(text):
    return "\n".join(text.strip().splitlines()[-20:])
