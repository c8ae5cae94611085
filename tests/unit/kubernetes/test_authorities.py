"""Authorities as clusters have them, and a handshake with a server that one of them certified."""

import datetime
import ssl

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from roma.kubernetes import credentials
from roma.kubernetes.credentials import find
from tests.support.kubeconfig import kubeconfig_of


def certificate(name, issuer, public, key, *extensions):
    """Return a certificate without key identifiers."""
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]),
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]),
        public,
        x509.random_serial_number(),
        now,
        now + datetime.timedelta(days=1),
    )
    for extension, is_critical in extensions:
        made = made.add_extension(extension, is_critical)
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.fixture
def eks(tmp_path):
    """An authority as EKS makes it, and a server's context with a certificate of it."""
    own, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    is_authority = x509.BasicConstraints(ca=True, path_length=None), True
    authority = certificate("kubernetes", "kubernetes", own.public_key(), own, is_authority)
    names = x509.SubjectAlternativeName([x509.DNSName("kubernetes")]), False
    served = certificate("kube-apiserver", "kubernetes", key.public_key(), own, names)
    (tmp_path / "ca.crt").write_bytes(authority)
    (tmp_path / "server.pem").write_bytes(
        served
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "server.pem")
    return tmp_path / "ca.crt", server


def shake_hands(tls, server, name):
    """Raise SSLError unless the client's context accepts the server's."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = tls.wrap_bio(down, up, server_hostname=name)
    serving = server.wrap_bio(up, down, server_side=True)
    for _ in range(3):
        for side in (client, serving):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    client.do_handshake()


def in_a_pod(ca, monkeypatch):
    (ca.parent / "namespace").write_text("models")
    (ca.parent / "token").write_text("t")
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", ca.parent)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    return find()


def beside(ca, _):
    content = kubeconfig_of("https://kubernetes")
    content["clusters"][0]["cluster"]["certificate-authority"] = ca.name
    (ca.parent / "config").write_text(yaml.safe_dump(content))
    return find(ca.parent / "config")


@pytest.mark.parametrize("found", [in_a_pod, beside])
def test_an_authority_without_key_identifiers_is_trusted(eks, monkeypatch, found):
    """As kubectl does; Python 3.13 made its default contexts strict about them."""
    default = ssl.create_default_context

    def strict(**files):
        made = default(**files)
        made.verify_flags |= ssl.VERIFY_X509_STRICT
        return made

    ca, server = eks
    monkeypatch.setattr(ssl, "create_default_context", strict)
    with pytest.raises(ssl.SSLCertVerificationError, match="Key Identifier"):
        shake_hands(strict(cafile=ca), server, "kubernetes")
    tls = found(ca, monkeypatch).tls
    shake_hands(tls, server, "kubernetes")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(tls, server, "elsewhere")
