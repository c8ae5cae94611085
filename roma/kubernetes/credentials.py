"""Credentials for an API server: a pod's service account, or a kubeconfig.

Tokens of service accounts are replaced every hour: their file is read again. So is that of the
authorities, once the server has a certificate of another.
"""

import base64
import contextlib
import os
import re
import ssl
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from roma.domain.addresses import authority
from roma.domain.errors import ConfigError, in_words

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Directory with a pod's own credentials."""

REREAD: Final = 10.0
"""Seconds after which a token's file is read again."""

_YAML_ERRORS: Final = (ValueError, LookupError, AttributeError, TypeError, RecursionError)
"""Errors of yaml's own constructors, for `2001-99-99`, `!!timestamp x` and the like."""

_AUTHORITY: Final = "certificate-authority"
_FILES: Final = frozenset({_AUTHORITY, "client-certificate", "client-key", "tokenFile"})
"""Keys of clusters and users that name a file."""

_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class TokenFile:
    """A bearer token in a file that is replaced from time to time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = ""
        self._read_at = -REREAD

    def __repr__(self) -> str:
        return f"<TokenFile {self._path}>"

    def __call__(self) -> str:
        """Return the token; a file that has none, or not yet, leaves the last one in force."""
        now = time.monotonic()
        if now - self._read_at >= REREAD:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                text = self._path.read_text(encoding="ascii").strip()
                if text and text.isprintable():
                    self._text = text
            self._read_at = now
        return self._text


class FixedToken:
    """A bearer token; no repr shows it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return "<FixedToken>"

    def __call__(self) -> str:
        """Return the token; "" if there is none."""
        return self._text


@dataclass(frozen=True, slots=True)
class ClusterCredentials:
    """Address of an API server and proof of identity; `namespace` is the default one.

    `source` names the file, for errors.
    """

    server: str
    namespace: str
    token: TokenFile | FixedToken
    tls: ssl.SSLContext | None
    source: str
    certificate: bytes = field(default=b"", repr=False)
    """PEM of the certificate that proves the identity, with its key; b"" if a token does."""
    authority: Path | None = None
    """File with the API server's authorities, if they are in one."""

    def renew(self) -> None:
        """Trust what that file has by now, too: a cluster's authority is replaced while it runs."""
        if self.tls is not None and self.authority is not None:
            with contextlib.suppress(OSError):  # it is being written
                self.tls.load_verify_locations(self.authority)

    def trusting(self, authority: Path) -> ssl.SSLContext:
        """Return a context that shows the same certificate to servers of another authority."""
        tls = _trusting(authority)
        _show(tls, self.certificate)
        return tls


def find(kubeconfig: Path | None = None, context: str | None = None) -> ClusterCredentials:
    """Return the credentials of a kubeconfig, or else those of the pod that this runs in.

    Without either, the files of `$KUBECONFIG` or `~/.kube/config` are read, as kubectl does: the
    first to have an entry is followed, one that is missing is passed over. Raises ConfigError
    naming the file and its key.
    """
    if (
        kubeconfig is None
        and context is None
        and (host := os.environ.get("KUBERNETES_SERVICE_HOST"))
    ):
        return _in_cluster(host, os.environ.get("KUBERNETES_SERVICE_PORT", "443"))
    return _Kubeconfig(_listed() if kubeconfig is None else [kubeconfig]).credentials(context)


def _listed() -> list[Path]:
    names = [name for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    paths = [Path(name) for name in names] or [_home() / ".kube" / "config"]
    return [path for path in paths if path.exists()] or paths[:1]


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # neither $HOME nor an entry of this user, as in many containers
        return Path("~")


def _trusting(cafile: Path | None = None, cadata: str | None = None) -> ssl.SSLContext:
    """Return a context that trusts a cluster's authorities, by default the system's.

    Python ≥ 3.13 demands key identifiers of them, which kubectl does not: EKS makes some without.
    """
    tls = ssl.create_default_context(cafile=cafile, cadata=cadata)
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return tls


def _show(tls: ssl.SSLContext, certificate: bytes) -> None:
    """Let a context show a certificate, if there is one."""
    if certificate:
        with tempfile.NamedTemporaryFile() as file:  # of mode 600; `ssl` reads files only
            file.write(certificate)
            file.flush()
            tls.load_cert_chain(file.name, password=_no_password)


def _in_cluster(host: str, port: str) -> ClusterCredentials:
    authorities = SERVICE_ACCOUNT / "ca.crt"
    try:
        namespace = (SERVICE_ACCOUNT / "namespace").read_text().strip()
        tls = _trusting(authorities)
        (SERVICE_ACCOUNT / "token").read_text()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{SERVICE_ACCOUNT}: cannot be read: {in_words(error)}") from error
    token = TokenFile(SERVICE_ACCOUNT / "token")
    return ClusterCredentials(
        f"https://{authority(host, port)}",
        namespace,
        token,
        tls,
        str(SERVICE_ACCOUNT),
        authority=authorities,
    )


def _no_password() -> str:
    """Refuse to unlock a key: without this OpenSSL would ask for its password at the terminal."""
    raise ValueError("client-key must have no password")


def _scheme(server: object) -> str | None:
    """Return the scheme of an API server's URL, None if it is none."""
    try:
        parts = urlsplit(server if isinstance(server, str) else "")
        is_url = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts.scheme if is_url and parts.scheme in ("http", "https") else None


def _read_kubeconfig(path: Path) -> dict[str, Any]:
    """Return the content of a file, the files that it names relative to itself made absolute."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {in_words(error)}") from error
    except (yaml.YAMLError, *_YAML_ERRORS) as error:
        # Without the text that it quotes, which may be a token's.
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "unreadable"
        raise ConfigError(f"{path}: is no YAML: {place}") from None
    if not isinstance(found, dict) or found.get("kind") != "Config":
        raise ConfigError(f"{path}: is no kubeconfig (kind: Config)")
    for section in ("contexts", "clusters", "users"):
        entries = found.get(section) or ()
        if not isinstance(entries, list | tuple):
            raise ConfigError(f"{path}: {section} = {type(entries).__name__}: must be a list")
        found[section] = [entry for entry in entries if isinstance(entry, dict)]
    for kind in ("cluster", "user"):
        for entry in found[f"{kind}s"]:
            named = entry.get(kind)
            for key in _FILES & set(named if isinstance(named, dict) else ()):
                named[key] = str(path.parent / str(named[key]))
    return found


class _Kubeconfig:
    """Kubeconfig files (client-go's clientcmd/v1 Config), merged as kubectl does."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._source = os.pathsep.join(str(path) for path in paths)
        self._files = [_read_kubeconfig(path) for path in paths]

    def credentials(self, wanted: str | None) -> ClusterCredentials:
        """Return the credentials of a context, or of the current one."""
        currents = (file.get("current-context") for file in self._files)
        name = wanted or next(filter(None, currents), "")
        context = self._entry("contexts", name, "context")
        cluster_name, user_name = str(context.get("cluster")), context.get("user")
        cluster = self._entry("clusters", cluster_name, "cluster")
        user = {} if user_name is None else self._entry("users", str(user_name), "user")
        server = cluster.get("server")
        scheme = _scheme(server)
        if scheme is None:
            raise self._fault(f"clusters.{cluster_name}.server", server, "http(s)://host:port")
        for key in ("exec", "auth-provider", "username", "password", "as"):
            if user.get(key):
                bound = "absent: use token, tokenFile or client-certificate"
                raise self._fault(f"users.{user_name}.{key}", "set", bound)
        for key in ("proxy-url", "tls-server-name"):
            if cluster.get(key):
                raise self._fault(f"clusters.{cluster_name}.{key}", "set", "absent")
        namespace = str(context.get("namespace") or "default")
        if not _NAMESPACE.fullmatch(namespace):
            raise self._fault(f"contexts.{name}.namespace", namespace, "a DNS label")
        file = None if cluster.get(f"{_AUTHORITY}-data") else cluster.get(_AUTHORITY)
        tls, certificate = None, b""
        if scheme != "http":
            tls, certificate = self._tls(cluster_name, cluster, user_name, user)
        return ClusterCredentials(
            server=str(server).rstrip("/"),
            namespace=namespace,
            token=self._token(f"users.{user_name}", user),
            tls=tls,
            source=self._source,
            certificate=certificate,
            authority=None if file is None else Path(file),
        )

    def _entry(self, section: str, name: str, kind: str) -> dict[str, Any]:
        entries = [entry for file in self._files for entry in file[section]]
        for entry in entries:
            if entry.get("name") == name:
                found = entry.get(kind)
                return found if isinstance(found, dict) else {}
        known = ", ".join(str(entry.get("name")) for entry in entries) or "none"
        raise self._fault(kind, name or None, f"one of {section} ({known})")

    def _fault(self, key: str, value: object, bound: str) -> ConfigError:
        return ConfigError(f"{self._source}: {key} = {value}: must be {bound}")

    def _token(self, key: str, user: Mapping[str, Any]) -> TokenFile | FixedToken:
        if name := user.get("tokenFile"):
            path = Path(name)
            try:
                path.read_text(encoding="ascii")
            except (OSError, ValueError) as error:
                raise self._fault(
                    f"{key}.tokenFile", path, f"readable: {in_words(error)}"
                ) from error
            return TokenFile(path)
        text = str(user.get("token") or "").strip()
        if not (text.isascii() and text.isprintable()):
            raise self._fault(f"{key}.token", "…", "printable ASCII")
        return FixedToken(text)

    def _tls(
        self,
        cluster_name: str,
        cluster: Mapping[str, Any],
        user_name: object,
        user: Mapping[str, Any],
    ) -> tuple[ssl.SSLContext, bytes]:
        """Return a context, and the certificate that it shows."""
        where = f"clusters.{cluster_name}.{_AUTHORITY}"
        try:
            authority = self._bytes(cluster, _AUTHORITY)
            tls = _trusting(cadata=None if authority is None else authority.decode("ascii"))
            where = f"clusters.{cluster_name}.insecure-skip-tls-verify"
            is_open = cluster.get("insecure-skip-tls-verify") or False
            if not isinstance(is_open, bool):  # "false" would be true
                raise ValueError("must be true or false")
            if is_open:
                tls.check_hostname = False
                tls.verify_mode = ssl.CERT_NONE
            where = f"users.{user_name}.client-certificate"
            certificate, key = (self._bytes(user, f"client-{k}") for k in ("certificate", "key"))
            if (certificate is None) != (key is None):
                raise ValueError("must be given together with client-key")
            own = b"" if certificate is None or key is None else certificate + b"\n" + key
            _show(tls, own)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            raise ConfigError(f"{self._source}: {where}: {error}") from error
        return tls, own

    @staticmethod
    def _bytes(section: Mapping[str, Any], key: str) -> bytes | None:
        """Return the content of `key`, which names a file, or of `key`-data, in base64."""
        if data := section.get(f"{key}-data"):
            # In lines where it is a block of YAML.
            return base64.b64decode("".join(str(data).split()), validate=True)
        if (name := section.get(key)) is not None:
            return Path(name).read_bytes()
        return None
