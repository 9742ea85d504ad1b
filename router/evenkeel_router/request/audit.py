"""The audit log: one line for each administrative fact, and for refused credentials, which are rate-limited.

Lines are ordinary log lines of the logger `evenkeel_router.audit`, with the field `audit`. No line has a key, a token or a part of one.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from evenkeel_contract.revocations import Revocation
from evenkeel_contract.routerconfig import TenancyConfig

from evenkeel_router.api.signed_keys import CredentialRefused

_log = logging.getLogger(__name__)
INTERVAL_S: Final = 60.0
"""Least time between two lines about the same identity, or about the same address."""
MAX_LINES: Final = 100
"""Most lines of one change about credentials of one kind; a larger change is one line with their number."""
_MAX_REMEMBERED: Final = 1000


@dataclass(slots=True)
class _Line:
    logged_s: float
    unlogged: int = 0
    """Refusals since then."""


def credentials_of(tenancy: TenancyConfig) -> dict[str, frozenset[str]]:
    """What may identify a client, by kind. Keys are named, never shown."""
    signed = () if tenancy.signed_keys is None else tenancy.signed_keys.keys
    return {
        "tenant": frozenset(f"{one.namespace}/{one.name}" for one in tenancy.tenants),
        "key": frozenset(
            f"{tenant.namespace}/{tenant.name}/{key.client}: {key.name} {key.sha256[:8]}"
            for tenant in tenancy.tenants
            for key in tenant.api_keys
        ),
        "signing key": frozenset(one.id for one in signed),
        "issuer": frozenset(f"{one.issuer} {one.audience}" for one in tenancy.jwt or ()),
        "trusted proxy": frozenset(tenancy.trusted_proxies),
    }


class Audit:
    """Writes the lines of one router."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lines: OrderedDict[tuple[str, str], _Line] = OrderedDict()
        self.refused_by_reason: Counter[str] = Counter()
        """Refused credentials since the router started."""

    def fact(self, action: str, **fields: object) -> None:
        """Something that an administrator or an owner of a key did."""
        words = " ".join(f"{name}={value}" for name, value in fields.items())
        _log.info("%s %s", action, words, extra={"fields": {"audit": action, **fields}})

    def configured(self, before: TenancyConfig, after: TenancyConfig) -> None:
        """A changed configuration: a line for each tenant, key, signing key, issuer and proxy that came or went. `before` and `after`
        may have only the tenants that differ."""
        known, now = credentials_of(before), credentials_of(after)
        for kind in known:
            for action, names in (
                ("added", now[kind] - known[kind]),
                ("removed", known[kind] - now[kind]),
            ):
                if len(names) > MAX_LINES:
                    self.fact(action, kind=kind, count=len(names))
                    continue
                for name in sorted(names):
                    self.fact(action, kind=kind, name=name)

    def revoked(self, added: Iterable[Revocation], by: str) -> None:
        """Revocations that were added. `by`: who added them."""
        for one in added:
            self.fact("revoked", subject=one.subject, until=one.until_s, by=by)

    def refused(self, refusal: CredentialRefused, address: str) -> None:
        """A credential was refused: counted always, logged once a minute for each identity or, without one, each address."""
        self.refused_by_reason[refusal.reason] += 1
        who = refusal.whose or f"address {address}"
        key, now_s = (who, refusal.reason), self._now()
        line = self._lines.get(key)
        if line is not None and now_s - line.logged_s < INTERVAL_S:
            line.unlogged += 1
            return
        more = 0 if line is None else line.unlogged
        self._lines[key] = _Line(now_s)
        self._lines.move_to_end(key)
        if len(self._lines) > _MAX_REMEMBERED:
            self._lines.popitem(last=False)
        fields = {
            "audit": "refused",
            "reason": refusal.reason,
            "identity": refusal.whose,
            "address": address,
            "more": more,
        }
        text = "refused a credential of %s: %s %s (%d more since the last line)"
        _log.warning(text, who, refusal.reason, refusal.detail, more, extra={"fields": fields})
