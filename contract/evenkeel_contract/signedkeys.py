"""Signed keys: API keys that say whose they are and when they end, so that no router needs a list of them.

    evk1_ <Base64 of: record, MAC> <checksum>

The record names the signing key, the key's own id, the identity, two times and optional ceilings. The MAC is the first 16 bytes of an
HMAC-SHA256 by the signing key over it. The checksum is a CRC-32 of all characters before it, in six characters, so that a
program that looks for leaked secrets can recognise a key without the signing key.

Base64 is that of URLs without padding (RFC 4648 section 5).
"""

from __future__ import annotations

import hmac
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final

import msgspec

from evenkeel_contract.decode import decode
from evenkeel_contract.key import MAX_NAME_BYTES, ClientKey
from evenkeel_contract.values import PRINTABLE, Length, Pattern, Range, UniqueBy

PREFIX: Final = "evk1_"
KEY_PATTERN: Final = r"evk1_[A-Za-z0-9_-]{60,1200}"
"""A regular expression for programs that look for leaked secrets; `has_checksum` excludes other text."""
MAX_KEY_CHARACTERS: Final = 1205
ID_BYTES: Final = 9
_MAC_BYTES: Final = 16
_CHECK_CHARACTERS: Final = 6
_CONTEXT: Final = b"evenkeel signed key 1\0"
_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
YEAR_S: Final = 366 * 24 * 3600
MAX_LIFETIME_S: Final = 10 * YEAR_S
OWN_LIFETIME_S: Final = 90 * 24 * 3600
MIN_SECRET: Final = 32
"""Fewest characters of a signing key."""

SignerId = Annotated[
    str, Pattern(r"[-._a-zA-Z0-9]{1,64}", "an id of letters, digits, '-', '_' and '.'")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKeyConfig:
    """A key that signs API keys."""

    id: SignerId
    """Name of the signing key in the keys that it signs. The last one in the order of the alphabet signs new keys."""
    secret: Annotated[str, Length(MIN_SECRET, MAX_NAME_BYTES), PRINTABLE]
    """The signing key itself: random text."""


MAX_OWN_KEYS: Final = 16
MIN_OWN_LIFETIME_S: Final = 3600
SELF_SERVICE_NEEDS_TOKENS: Final = (
    "needs tenancy.jwt, because only a token of an issuer may create keys; add an issuer"
)
OUTLIVES_MAXIMUM: Final = "must be at most {longest}, the maximum of all signed keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfServiceConfig:
    """Keys that clients create with a token of an issuer."""

    keys_per_client: Annotated[int, Range(1, MAX_OWN_KEYS)] = 1
    """Keys that each client may have at a time. During the renewal of one, its predecessor is valid too."""
    lifetime_s: Annotated[int, Range(MIN_OWN_LIFETIME_S, MAX_LIFETIME_S)] = OWN_LIFETIME_S
    """Longest time from the creation of such a key to its end. A new key lasts for at least half of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedKeysConfig:
    """API keys that name their client themselves."""

    keys: Annotated[tuple[SigningKeyConfig, ...], UniqueBy(("id",)), Length(1, 16)]
    """Signing keys whose API keys are accepted. During a rotation there are two."""
    max_lifetime_s: Annotated[int, Range(60, MAX_LIFETIME_S)] = YEAR_S
    """Longest time from the creation of an API key to its end. Keys that live longer are refused."""
    self_service: SelfServiceConfig | None = None
    """Keys that clients create themselves, with a token. None: only administrators create keys."""


def salvage_signing_keys(entries: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """(id → signing key of the usable entries of a Secret, a sentence for each other one)."""
    good: dict[str, str] = {}
    bad = []
    for id_, secret in entries.items():
        _, faults = decode(SigningKeyConfig, {"id": id_, "secret": secret})
        if faults:
            bad.append(f"entry {id_} must be {MIN_SECRET} to {MAX_NAME_BYTES} printable characters")
        else:
            good[id_] = secret
    return good, bad


class SignedKey(msgspec.Struct, frozen=True, array_like=True):
    """What a signed key says."""

    signer: str
    """Id of the signing key."""
    id: str
    """Id of this key, unique. It is no secret: logs and revocations name it."""
    namespace: str
    tenant: str
    client: str
    issued_s: int
    """Time of creation, in seconds since 1970."""
    expires_s: int
    """Time from which the key is refused, in seconds since 1970."""
    requests_per_minute: int = 0
    """Ceilings of the client that the key names. 0: none."""
    tokens_per_minute: int = 0
    max_concurrent: int = 0

    @property
    def identity(self) -> str:
        """`namespace/tenant/client`, escaped."""
        return ClientKey(self.namespace, self.tenant, self.client).identity


class KeyFault(Enum):
    """Why a signed key is refused: the label of a metric."""

    MALFORMED = "malformed"  # no record, or a wrong checksum: a typing error
    UNKNOWN_SIGNER = "unknown_signer"
    FORGED = "forged"
    EXPIRED = "expired"
    NOT_YET = "not_yet_valid"
    TOO_LONG = "too_long_lived"
    REVOKED = "revoked"


class SignedKeyError(Exception):
    """A signed key is not valid. The message is for the log, never for the sender."""

    def __init__(self, fault: KeyFault, detail: str) -> None:
        super().__init__(detail)
        self.fault = fault


def mint(record: SignedKey, secret: str) -> str:
    """The key."""
    payload = msgspec.msgpack.encode(record)
    body = urlsafe_b64encode(payload + _mac(payload, secret)).rstrip(b"=").decode()
    text = PREFIX + body
    return text + checksum(text)


def is_signed_key(text: str) -> bool:
    """Whether a text claims to be a signed key."""
    return text.startswith(PREFIX)


def has_checksum(text: str) -> bool:
    """Whether a text ends with its checksum, as every signed key does."""
    return checksum(text[:-_CHECK_CHARACTERS]) == text[-_CHECK_CHARACTERS:]


def verify(text: str, secrets: Mapping[str, str]) -> SignedKey:
    """What a key says; `secrets`: id of a signing key → the key. Raises `SignedKeyError`. Times are the caller's to judge."""
    record, payload, mac = _taken_apart(text)
    secret = secrets.get(record.signer)
    if secret is None:
        raise SignedKeyError(KeyFault.UNKNOWN_SIGNER, f"no signing key {record.signer[:64]!r}")
    if not hmac.compare_digest(mac, _mac(payload, secret)):
        raise SignedKeyError(KeyFault.FORGED, f"signing key {record.signer!r} did not sign it")
    return record


def read(text: str) -> SignedKey:
    """What a key says, without a check of its MAC. Raises `SignedKeyError`."""
    return _taken_apart(text)[0]


def checksum(text: str) -> str:
    """The CRC-32 of a text, in six characters."""
    number = zlib.crc32(text.encode())
    found = ""
    for _ in range(_CHECK_CHARACTERS):
        number, digit = divmod(number, len(_DIGITS))
        found = _DIGITS[digit] + found
    return found


def _taken_apart(text: str) -> tuple[SignedKey, bytes, bytes]:
    """(record, its bytes, MAC)."""
    if len(text) > MAX_KEY_CHARACTERS or not text.isascii() or not is_signed_key(text):
        raise SignedKeyError(KeyFault.MALFORMED, "is no signed key")
    if not has_checksum(text):
        raise SignedKeyError(KeyFault.MALFORMED, "has a wrong checksum: a character is missing")
    body = text[len(PREFIX) : -_CHECK_CHARACTERS]
    try:
        data = urlsafe_b64decode(body + "=" * (-len(body) % 4))
        payload, mac = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
        return _DECODER.decode(payload), payload, mac
    except (ValueError, msgspec.DecodeError) as error:
        raise SignedKeyError(KeyFault.MALFORMED, "has no readable record") from error


_DECODER: Final = msgspec.msgpack.Decoder(SignedKey)


def _mac(payload: bytes, secret: str) -> bytes:
    return hmac.digest(secret.encode(), _CONTEXT + payload, "sha256")[:_MAC_BYTES]
