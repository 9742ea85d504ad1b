"""Provenance: an in-toto statement with SLSA's predicate, in a signed DSSE envelope. Pure.

Sources: in-toto Statement v1, SLSA Provenance v1.0, DSSE v1.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from release.errors import ReleaseError

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "urn:evenkeel:make-release:v1"

Digests = Mapping[str, str]
"""Name of a file → SHA-256 in hexadecimal."""


def statement(
    subjects: Digests, *, commit: str, parameters: Mapping[str, str], sources: Digests, builder: str
) -> dict[str, Any]:
    """Which files were built, from which commit and files, with which parameters of `make release`."""
    return {
        "_type": STATEMENT_TYPE,
        "subject": [_described(name, digest) for name, digest in sorted(subjects.items())],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": dict(parameters),
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": commit}},
                    *(_described(name, digest) for name, digest in sorted(sources.items())),
                ],
            },
            "runDetails": {"builder": {"id": builder}},
        },
    }


def sealed(statement: Mapping[str, Any], *, sign: Callable[[bytes], bytes], key_id: str) -> bytes:
    """The envelope, as one line of JSON."""
    payload = json.dumps(statement, sort_keys=True).encode()
    signature = {"keyid": key_id, "sig": _text(sign(_signed_bytes(payload)))}
    envelope = {
        "payloadType": PAYLOAD_TYPE,
        "payload": _text(payload),
        "signatures": [signature],
    }
    return json.dumps(envelope).encode() + b"\n"


def opened(envelope: bytes, is_signed: Callable[[bytes, bytes], bool]) -> dict[str, Any]:
    """The statement of an envelope; raises `ReleaseError` if no signature is that of the key."""
    try:
        plain = json.loads(envelope)
        payload = base64.b64decode(plain["payload"], validate=True)
        signatures = [base64.b64decode(one["sig"], validate=True) for one in plain["signatures"]]
        found: dict[str, Any] = json.loads(payload)
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise ReleaseError(f"the provenance is not a DSSE envelope: {error}") from error
    if not any(is_signed(_signed_bytes(payload), signature) for signature in signatures):
        raise ReleaseError("the provenance is not signed with this key")
    return found


def subjects_of(statement: Mapping[str, Any]) -> Digests:
    """The files that a statement is about."""
    try:
        return {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    except (KeyError, TypeError) as error:
        raise ReleaseError(f"the provenance names no files: {error}") from error


def _described(name: str, digest: str) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": digest}}


def _signed_bytes(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding, for `PAYLOAD_TYPE`."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
