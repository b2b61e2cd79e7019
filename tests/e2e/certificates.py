"""Certificates made on the spot, by the openssl command that Debian's ca-certificates brings along."""

import subprocess
from pathlib import Path


def openssl(*arguments) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


class Authority:
    """Signs certificates of 127.0.0.1 with keys on P-256; `pem` is its own."""

    def __init__(self, folder: Path, name: str):
        self.folder = folder
        self.pem = folder / f"{name}.pem"
        self.key = folder / f"{name}.key"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", self.key, "-out", self.pem,
                "-subj", f"/CN={name}", "-days", 2, "-addext", "keyUsage=critical,keyCertSign,cRLSign")

    def issue(self, name: str) -> tuple[Path, Path]:
        """The files of certificate and key."""
        certificate, key, request = (self.folder / f"{name}.{kind}" for kind in ("crt", "key", "csr"))
        extensions = self.folder / "extensions.cnf"
        extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=critical,CA:FALSE\n"
                              "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n")
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", request,
                "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", request, "-CA", self.pem, "-CAkey", self.key, "-CAcreateserial", "-out", certificate,
                "-days", 2, "-extfile", extensions)
        return certificate, key
