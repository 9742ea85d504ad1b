"""The keys of token issuers, as far as they were read; who reads them is `ledger.key_sets`.

Kept apart from `tokens`, which imports the cryptography: routers without issuers do not load it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from evenkeel_contract.messages import UNREADABLE
from evenkeel_contract.tokenissuers import MAX_KEY_SET_BYTES

from evenkeel_router.api.signed_keys import CredentialRefused

_MAX_KEYS: Final = 64
PlainKey = Mapping[str, object]
"""One JSON Web Key (RFC 7517)."""


class KeySetError(ValueError):
    """What an issuer sent is no key set."""


class KeysWanted(CredentialRefused):
    """A token needs a key of an issuer that was not read yet. The request may wait for it, and is refused otherwise."""

    def __init__(self, url: str, detail: str, *, has_keys: bool) -> None:
        reason = "unknown_issuer_key" if has_keys else "no_issuer_keys"
        super().__init__(reason, detail, unavailable=not has_keys)
        self.url = url


class KeySets:
    """Key sets by the address that they were read from."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[PlainKey, ...]] = {}

    def of(self, url: str) -> tuple[PlainKey, ...] | None:
        """The keys; None if they were never read."""
        return self._read.get(url)

    def put(self, url: str, keys: tuple[PlainKey, ...]) -> bool:
        """Replace the keys; returns whether they differ from those before."""
        changed = self._read.get(url) != keys
        self._read[url] = keys
        return changed

    def keep(self, urls: frozenset[str]) -> None:
        """Forget the keys of all other addresses."""
        self._read = {url: keys for url, keys in self._read.items() if url in urls}


def read_key_set(data: bytes | str) -> tuple[PlainKey, ...]:
    """The keys of a JSON Web Key Set; raises `KeySetError`."""
    if len(data) > MAX_KEY_SET_BYTES:
        raise KeySetError(f"is longer than {MAX_KEY_SET_BYTES} bytes")
    try:
        found = msgspec.json.decode(data)
    except UNREADABLE as error:
        raise KeySetError(f"is not JSON: {error}") from error
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list) or not all(isinstance(key, dict) for key in keys):
        raise KeySetError("has no list of keys")
    if not 0 < len(keys) <= _MAX_KEYS:
        raise KeySetError(f"has {len(keys)} keys, not 1 to {_MAX_KEYS}")
    return tuple(keys)
