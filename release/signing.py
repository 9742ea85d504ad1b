"""Keys and signatures: ECDSA P-256 with SHA-256 by openssl for files, OpenPGP by gpg for the chart.

Helm knows only OpenPGP. Everything else has signatures that `openssl` and `cosign verify-blob` check.
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from release.errors import ReleaseError
from release.programs import run

CHART_SIGNER: Final = "Evenkeel releases"
"""The user id of the OpenPGP key."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The folder with the keys of a release. The private ones must not leave it."""

    folder: Path

    @property
    def private(self) -> Path:
        return self.folder / "evenkeel.pem"

    @property
    def public(self) -> Path:
        return self.folder / "evenkeel.pub"

    @property
    def chart_private(self) -> Path:
        """A keyring, in the format that Helm reads."""
        return self.folder / "evenkeel-chart.secret.gpg"

    @property
    def chart_public(self) -> Path:
        return self.folder / "evenkeel-chart.gpg"

    def exist(self) -> bool:
        """Whether all four files exist; raises `ReleaseError` if only some do."""
        found = [path.exists() for path in self._all]
        if any(found) and not all(found):
            missing = [path.name for path in self._all if not path.exists()]
            raise ReleaseError(f"{self.folder} has no {', '.join(missing)}; restore the files")
        return all(found)

    @property
    def _all(self) -> tuple[Path, ...]:
        return self.private, self.public, self.chart_private, self.chart_public

    def make(self) -> None:
        """Make new keys without passphrases."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        curve = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
        run("openssl", "genpkey", *curve, "-out", self.private)
        run("openssl", "pkey", "-in", self.private, "-pubout", "-out", self.public)
        with tempfile.TemporaryDirectory() as home:
            gpg = ("gpg", "--homedir", home, "--batch", "--quiet", "--passphrase", "")
            run(*gpg, "--quick-generate-key", CHART_SIGNER, "rsa3072", "sign", "never")
            run(*gpg, "--output", self.chart_public, "--export", CHART_SIGNER)
            run(*gpg, "--pinentry-mode", "loopback", "--output", self.chart_private,
                "--export-secret-keys", CHART_SIGNER)  # fmt: skip
            run("gpgconf", "--homedir", home, "--kill", "all")
        for path in (self.private, self.chart_private):
            path.chmod(0o600)


def sign(private: Path, data: bytes) -> bytes:
    """The signature of `data`, in DER."""
    return run("openssl", "dgst", "-sha256", "-sign", private, stdin=data)


def is_signed(public: Path, data: bytes, signature: bytes) -> bool:
    """Whether the key has signed these bytes."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(signature)
        file.flush()
        try:
            run(
                "openssl", "dgst", "-sha256", "-verify", public, "-signature", file.name, stdin=data
            )
        except ReleaseError:
            return False
    return True


def key_id(public: Path) -> str:
    """SHA-256 of the key in DER, in hexadecimal."""
    return hashlib.sha256(
        run("openssl", "pkey", "-pubin", "-in", public, "-outform", "DER")
    ).hexdigest()
