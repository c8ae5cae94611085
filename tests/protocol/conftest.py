"""Certificates of an authority of our own."""

import pytest
import trustme


class Authority:
    """Issues certificates into files."""

    def __init__(self, folder, name):
        self.folder = folder
        self.ca = trustme.CA()
        self.file = folder / f"{name}-ca.pem"
        self.ca.cert_pem.write_to_path(str(self.file))

    def issue(self, file, *identities):
        """Write FILE.pem and FILE.key; return their paths."""
        made = self.ca.issue_cert(*identities)
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
