"""Certificates of an authority of our own, and a dispatcher with secrets on real sockets."""

import asyncio

import pytest
import trustme
import uvloop


class Authority:
    """Issues certificates into files; `serve` is a TlsConfig's worth of paths."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.ca = trustme.CA()
        self.file = folder / f"{name}-ca.pem"
        self.ca.cert_pem.write_to_path(str(self.file))

    def issue(self, file, *identities, common_name=None):
        """Write FILE.pem and FILE.key; return their paths."""
        made = self.ca.issue_cert(*identities, common_name=common_name)
        certificate, key = self.folder / f"{file}.pem", self.folder / f"{file}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        key.write_bytes(made.private_key_pem.bytes())
        return {"certificate": str(certificate), "key": str(key)}


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path, "ours")


@pytest.fixture
def other_authority(tmp_path):
    return Authority(tmp_path, "other")


def pytest_asyncio_loop_factories(config, item):
    """The dispatcher runs on uvloop, whose TLS is not asyncio's: test both."""
    both = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return (
        both
        if item.path.stem in ("test_silent_clients", "test_tls")
        else {"asyncio": asyncio.new_event_loop}
    )
