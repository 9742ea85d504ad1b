"""Signed keys that a client creates with a token of an issuer: which ones it has, without a list of them.

A client has the keys 1 to N (`selfService.keysPerClient`), and the id of a key says all about it:

    <hash of the identity>.<number>.<period>.<variant>

Time is divided into periods of half a lifetime, for each key from another moment on. A period's key is valid for two periods. So a
new key lasts for at least half a lifetime, and of each number two are valid at most: this period's and its predecessor. Within a
period each router answers with the same key, whether or not it, or another one, answered with it before. A revoked key has a
successor in its period: the first variant that is not revoked. Only revocations are kept (docs/design/identity.md).
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import sha256
from typing import Final, NamedTuple

from evenkeel_contract.revocations import RevocationList
from evenkeel_contract.signedkeys import ID_BYTES, SelfServiceConfig

VARIANTS: Final = 8
"""Keys of one number that a client may have in a period, revoked ones included: a bound of the revocations that it causes."""
USE_S: Final = 60
"""How exactly the time of a key's last use is known, in seconds."""
_MAX_USES: Final = 20_000
_PARTS: Final = 4
_MAX_ID: Final = 64


class OwnKey(NamedTuple):
    """One key of a client."""

    id: str
    number: int
    issued_s: int
    """Time that the key has as that of its creation, in seconds since 1970."""
    expires_s: int
    revoked: bool


class KeyUses:
    """When clients used the keys that they created, as far as this router knows. Beyond 20,000 keys the longest unused one is dropped."""

    def __init__(self) -> None:
        self._last_s: OrderedDict[str, float] = OrderedDict()

    def used(self, id_: str, now_s: float) -> None:
        """A key was used."""
        self._last_s[id_] = now_s
        self._last_s.move_to_end(id_)
        if len(self._last_s) > _MAX_USES:
            self._last_s.popitem(last=False)

    def last_s(self, id_: str) -> float | None:
        """Time of the last use in seconds since 1970, to a minute; None if none is known."""
        return self._last_s.get(id_)


def is_own(id_: str) -> bool:
    """Whether a client created the key of this id. Ids of other keys have no dots."""
    return id_.count(".") == _PARTS - 1


class OwnKeys:
    """The keys of one client."""

    def __init__(
        self, policy: SelfServiceConfig, revocations: RevocationList, identity: str
    ) -> None:
        self._policy = policy
        self._revocations = revocations
        self._identity = identity
        self._owner = urlsafe_b64encode(sha256(identity.encode()).digest()[:ID_BYTES]).decode()
        self._period_s = policy.lifetime_s // 2

    def current(self, number: int, now_s: float) -> OwnKey | None:
        """The key that a number has now; None if the client revoked all variants of this period."""
        keys = list(self._of_period(number, self._period(number, now_s), now_s))
        return None if keys[-1].revoked else keys[-1]

    def next_s(self, number: int, now_s: float) -> int:
        """When the next period of a number begins, in seconds since 1970."""
        return self._begins_s(number, self._period(number, now_s) + 1)

    def all(self, now_s: float) -> Iterator[OwnKey]:
        """All keys that were not revoked and may be valid, and the revoked ones of the same periods. A key is among them whether or not the
        client asked for it."""
        for number in range(1, self._policy.keys_per_client + 1):
            now = self._period(number, now_s)
            for period in (now - 1, now):
                yield from self._of_period(number, period, now_s)

    def find(self, id_: str, now_s: float) -> OwnKey | None:
        """The key of an id; None if it is none of this client's, or ended. Keys of the next period count: clocks differ."""
        parts = id_.split(".")
        if len(id_) > _MAX_ID or len(parts) != _PARTS or parts[0] != self._owner:
            return None
        if not all(part.isascii() and part.isdecimal() for part in parts[1:]):
            return None
        number, period = int(parts[1]), int(parts[2])
        if not 1 <= number <= self._policy.keys_per_client:
            return None
        if abs(period - self._period(number, now_s)) > 1:
            return None
        return next((key for key in self._of_period(number, period, now_s) if key.id == id_), None)

    def _of_period(self, number: int, period: int, now_s: float) -> Iterator[OwnKey]:
        """The keys of a period: revoked ones, then the one that is not."""
        begins_s = self._begins_s(number, period)
        revoked_s = self._revocations.revoked_s(self._identity)
        # An administrator's revocation of the client or its tenant: keys are created anew, later than it.
        ended = period < self._period(number, now_s) and revoked_s >= begins_s + self._period_s
        issued_s = max(begins_s, min(revoked_s + 1, begins_s + self._period_s))
        for variant in range(VARIANTS):
            id_ = f"{self._owner}.{number}.{period}.{variant}"
            revoked = ended or id_ in self._revocations
            yield OwnKey(id_, number, issued_s, begins_s + 2 * self._period_s, revoked)
            if ended or not revoked:
                return

    def _period(self, number: int, now_s: float) -> int:
        return (int(now_s) + self._shift_s(number)) // self._period_s

    def _begins_s(self, number: int, period: int) -> int:
        return period * self._period_s - self._shift_s(number)

    def _shift_s(self, number: int) -> int:
        """Keys of different clients begin and end at different times."""
        digest = sha256(f"{self._owner}.{number}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % self._period_s
