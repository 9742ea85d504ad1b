"""Revocations of signed keys: what routers send each other, and what they keep until it ends.

A revocation names one key by its id, or an identity: a client (`namespace/tenant/client`), or a tenant with all its clients
(`namespace/tenant`). One of an identity refuses the keys that were created until then; later keys are accepted. It is kept until the
last of these keys has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Final

import msgspec

from evenkeel_contract.messages import UNREADABLE
from evenkeel_contract.signedkeys import MAX_LIFETIME_S, SignedKey

REVOCATIONS_PATH: Final = "/v1/revocations"
MAX_REVOCATIONS: Final = 100_000
"""Most revocations of a service at a time."""
_MAX_TIME_S: Final = 2**40

Subject = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
Time = Annotated[int, msgspec.Meta(ge=0, le=_MAX_TIME_S)]


class Revocation(msgspec.Struct, frozen=True):
    """One revocation."""

    subject: Subject
    """Id of a key; or an identity, which has slashes."""
    revoked_s: Time
    """Time of the revocation, in seconds since 1970. Keys of the identity that were created later stay valid."""
    until_s: Time
    """Time from which all keys that it concerns have ended, in seconds since 1970."""


class RevocationMessage(msgspec.Struct, frozen=True):
    """All revocations of a router, or new ones for it."""

    revocations: Annotated[tuple[Revocation, ...], msgspec.Meta(max_length=MAX_REVOCATIONS)]
    version: int = 0
    """Grows with each change of the router's list; 0 in a question."""
    router: str = ""
    """Incarnation of the router that answers."""

    def lasting(self, lifetime_s: int) -> list[Revocation]:
        """The revocations, none longer than the keys that exist by then: they live `lifetime_s` at most."""
        return [
            Revocation(one.subject, one.revoked_s, min(one.until_s, one.revoked_s + lifetime_s + 1))
            for one in self.revocations
        ]


class RevocationsError(ValueError):
    """A message or a file with revocations cannot be read."""


_DECODER: Final = msgspec.json.Decoder(RevocationMessage)


def encode(message: RevocationMessage) -> bytes:
    """The message as JSON."""
    return msgspec.json.encode(message)


def decode(data: bytes) -> RevocationMessage:
    """Read a message; raises `RevocationsError`."""
    try:
        return _DECODER.decode(data)
    except UNREADABLE as error:
        raise RevocationsError(f"not a list of revocations: {error}") from error


class RevocationList:
    """The revocations in force. Merging is commutative, associative and idempotent, so routers may exchange them in any order."""

    def __init__(self) -> None:
        self._found: dict[str, Revocation] = {}
        self.version = 0
        """Grows with each change."""

    @property
    def count(self) -> int:
        """How many are in force."""
        return len(self._found)

    def __iter__(self) -> Iterator[Revocation]:
        yield from self._found.values()

    def merge(self, given: Iterable[Revocation], now_s: float) -> list[Revocation]:
        """Add revocations; returns those that were new or later than known ones. Some are left out where the list is full."""
        added = []
        for one in given:
            known = self._found.get(one.subject)
            if known is not None:
                one = Revocation(
                    one.subject,
                    max(one.revoked_s, known.revoked_s),
                    max(one.until_s, known.until_s),
                )
            full = known is None and len(self._found) >= MAX_REVOCATIONS
            if one == known or one.until_s <= now_s or full:
                continue
            self._found[one.subject] = one
            added.append(one)
        self.version += bool(added)
        return added

    def expire(self, now_s: float) -> list[Revocation]:
        """Drop those that have ended; returns them."""
        gone = [one for one in self._found.values() if one.until_s <= now_s]
        for one in gone:
            del self._found[one.subject]
        self.version += bool(gone)
        return gone

    def __contains__(self, subject: str) -> bool:
        """Whether there is a revocation of a key's id, or of an identity."""
        return subject in self._found

    def revokes(self, key: SignedKey) -> bool:
        """Whether a key is revoked."""
        if not self._found:
            return False
        return key.id in self._found or self.revokes_identity(key.identity, key.issued_s)

    def revokes_identity(self, identity: str, issued_s: float) -> bool:
        """Whether a credential of a client that was created at that time is revoked, by its client or its tenant."""
        return bool(self._found) and issued_s <= self.revoked_s(identity)

    def revoked_s(self, identity: str) -> int:
        """Time of the last revocation of a client, or of its tenant, in seconds since 1970; -1 if there is none."""
        subjects = (identity, identity.rpartition("/")[0])
        found = (self._found.get(subject) for subject in subjects)
        return max((one.revoked_s for one in found if one is not None), default=-1)


def revocation_of(subject: str, now_s: float, *, ends_s: float | None = None) -> Revocation:
    """A revocation from now on. `ends_s`: when the last key that it concerns ends; None if that is not known."""
    until = now_s + MAX_LIFETIME_S if ends_s is None else ends_s
    return Revocation(subject, int(now_s), int(until) + 1)
