"""Signatures, checksums and provenance: any changed byte is found. Keys and signatures are those of openssl."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from release import checksums, provenance, verify
from release.errors import ReleaseError
from release.names import PROVENANCE
from release.seal import seal
from release.signing import Keys

FILES = {
    "evenkeel.whl": b"PK wheel",
    "evenkeel.tgz": b"chart",
    "install.yaml": b"kind: Namespace\n",
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    if shutil.which("gpg") is None:
        pytest.skip("no gpg")
    found = Keys(tmp_path_factory.mktemp("keys") / "keys")
    assert not found.exist()
    found.make()
    assert found.exist()
    return found


@pytest.fixture
def dist(keys: Keys, tmp_path: Path) -> Path:
    folder = tmp_path / "dist"
    folder.mkdir()
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    seal(folder, keys=keys, commit="c" * 40, parameters={"registry": "r.example.com/e"})
    return folder


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_release_as_it_was_signed_has_no_faults(dist: Path, keys: Keys) -> None:
    assert list(verify.faults(dist, keys.public)) == []
    assert verify.main(["--key", str(keys.public), str(dist)]) == 0


@pytest.mark.parametrize(
    "name",
    [
        *FILES,
        "evenkeel.pub",
        "evenkeel-chart.gpg",
        PROVENANCE,
        checksums.SUMS,
        checksums.SIGNATURE,
    ],
)
def test_a_changed_byte_in_any_file_is_found(name: str, dist: Path, keys: Keys) -> None:
    flip(dist / name)
    found = list(verify.faults(dist, keys.public))
    assert found
    named = checksums.SUMS if name == checksums.SIGNATURE else name
    assert any(named in fault for fault in found)
    assert verify.main(["--key", str(keys.public), str(dist)]) == 1


CHANGES: dict[str, Callable[[Path], object]] = {
    "install.yaml is missing": lambda folder: (folder / "install.yaml").unlink(),
    "more is not in SHA256SUMS": lambda folder: (folder / "more").touch(),
    "SHA256SUMS.sig cannot be read: No such file or directory": lambda folder: (
        folder / checksums.SIGNATURE
    ).unlink(),
}


@pytest.mark.parametrize("fault", CHANGES)
def test_a_missing_and_a_further_file_is_found(fault: str, dist: Path, keys: Keys) -> None:
    CHANGES[fault](dist)
    (found,) = verify.faults(dist, keys.public)
    assert found.endswith(fault)


def test_files_that_another_key_signed_are_refused(dist: Path, tmp_path: Path) -> None:
    other = Keys(tmp_path / "other")
    other.make()
    (fault,) = verify.faults(dist, other.public)
    assert fault == f"SHA256SUMS is not signed with {other.public}"


def test_a_key_with_missing_files_is_not_replaced(keys: Keys, tmp_path: Path) -> None:
    partial = Keys(tmp_path / "keys")
    shutil.copytree(keys.folder, partial.folder)
    partial.private.unlink()
    with pytest.raises(ReleaseError, match=r"has no evenkeel\.pem"):
        partial.exist()


def test_private_keys_are_readable_by_their_owner_only(keys: Keys) -> None:
    for path in (keys.private, keys.chart_private):
        assert path.stat().st_mode & 0o077 == 0


def test_the_commands_of_the_docs_check_the_same(dist: Path) -> None:
    commands = """
        openssl dgst -sha256 -verify evenkeel.pub -signature SHA256SUMS.sig SHA256SUMS
        sha256sum --check --strict SHA256SUMS
    """

    def status() -> int:
        return subprocess.run(
            ["bash", "-ec", commands], cwd=dist, capture_output=True, check=False
        ).returncode

    assert status() == 0
    flip(dist / "evenkeel.tgz")
    assert status() != 0


def test_the_signature_is_over_the_encoding_of_dsse() -> None:
    """PAE of the specification's example, with the type that this module always writes."""
    signed: list[bytes] = []

    def sign(data: bytes) -> bytes:
        signed.append(data)
        return b"signature"

    plain = {"_type": provenance.STATEMENT_TYPE}
    envelope = json.loads(provenance.sealed(plain, sign=sign, key_id="id"))
    payload = json.dumps(plain).encode()
    assert signed == [b"DSSEv1 28 application/vnd.in-toto+json %d %s" % (len(payload), payload)]
    assert base64.b64decode(envelope["payload"]) == payload
    assert envelope["signatures"] == [
        {"keyid": "id", "sig": base64.b64encode(b"signature").decode()}
    ]


def test_provenance_names_every_artifact_the_commit_and_the_parameters(dist: Path) -> None:
    statement = provenance.opened((dist / PROVENANCE).read_bytes(), lambda data, signature: True)
    assert set(provenance.subjects_of(statement)) == {
        *FILES,
        "evenkeel.pub",
        "evenkeel-chart.gpg",
    }
    definition = statement["predicate"]["buildDefinition"]
    assert definition["externalParameters"] == {"registry": "r.example.com/e"}
    source, *files = definition["resolvedDependencies"]
    assert source["digest"] == {"gitCommit": "c" * 40}
    assert {file["name"] for file in files} >= {"pyproject.toml", "constraints.txt"}


@pytest.mark.parametrize("data", [b"", b"{}", b'{"payload": "?", "signatures": []}', b"[1]"])
def test_what_is_no_envelope_is_an_error(data: bytes) -> None:
    with pytest.raises(ReleaseError, match="not a DSSE envelope"):
        provenance.opened(data, lambda data, signature: True)


def test_lines_that_are_no_checksums_are_an_error() -> None:
    with pytest.raises(ReleaseError, match="is not a digest and a file name"):
        checksums.read(b"0" * 64 + b"  ../etc/passwd\n")
