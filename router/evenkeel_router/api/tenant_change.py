"""The tenants that differ between two configurations. Pure."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

from evenkeel_contract.routerconfig import TenantConfig

STEP: Final = 256
"""Tenants that are compared in one step."""


class TenantChange(NamedTuple):
    """Tenants that differ between two configurations."""

    before: Sequence[TenantConfig] = ()
    """Changed and removed tenants, as they were."""
    after: Sequence[TenantConfig] = ()
    """Changed and new tenants, as they are."""


def changes(
    before: Sequence[TenantConfig], after: Sequence[TenantConfig]
) -> Generator[None, None, TenantChange]:
    """The difference, in steps. A tenant that did not change is usually the same object, which is fast to compare."""
    new, old = list[TenantConfig](), list[TenantConfig]()
    # The same tenant is usually at the same place, so that no table of all of them is needed.
    for number, (one, other) in enumerate(zip_longest(before, after)):
        if one is not other and one != other:
            old += () if one is None else (one,)
            new += () if other is None else (other,)
        if not number % STEP:
            yield
    kept = {(one.namespace, one.name): one for one in old}
    moved = [one for one in new if kept.get((one.namespace, one.name)) == one]
    same = {(one.namespace, one.name) for one in moved}
    return TenantChange(
        tuple(one for one in old if (one.namespace, one.name) not in same),
        tuple(one for one in new if (one.namespace, one.name) not in same),
    )
