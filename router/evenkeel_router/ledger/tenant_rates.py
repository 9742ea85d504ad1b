"""What tenants are served per second, for the weights of a cell (R21) or of one of several services (R22)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Final

from evenkeel_contract.key import LEAST_WEIGHT, MAX_WEIGHT
from evenkeel_fairshare.cells import STEP_TENANTS

from evenkeel_router.ledger.fairness import MemberFigures

TOLERANCE: Final = 0.02
"""A weight that changes by less than this part of it stays: each change costs the routers and engines some work."""


class TenantMeter:
    """Rates of tenants from one look to the next."""

    def __init__(self) -> None:
        self._before: tuple[float, Mapping[str, float]] | None = None
        """Time of the last look, and what each tenant had been served by then."""

    def rates(
        self, tenants: Mapping[str, MemberFigures], now_s: float
    ) -> Mapping[str, float] | None:
        """Tenant → weighted tokens per second since the last look; None at the first one."""
        served = {name: one.service for name, one in tenants.items()}
        before, self._before = self._before, (now_s, served)
        if before is None or now_s <= before[0]:
            return None
        passed_s = now_s - before[0]
        return {
            name: max(0.0, total - before[1].get(name, 0.0)) / passed_s
            for name, total in served.items()
        }


def weight_in_keys(weight: float) -> float:
    """A tenant's weight as client keys may have it: in thousandths."""
    return min(max(round(weight, 3), LEAST_WEIGHT), float(MAX_WEIGHT))


def changed_weights(
    found: Mapping[str, float],
    before: Mapping[str, float],
    configured: Callable[[str], float],
) -> Generator[None, None, Mapping[str, float] | None]:
    """Tenant → its new weight, where that is not the configured one; None if no weight changed by more than the tolerance. In steps.

    `found`: the computed weights; a tenant without one has the configured weight. `before`: the last result.
    """
    local: dict[str, float] = {}
    differs = False
    for n, tenant in enumerate({**before, **found}):
        usual = configured(tenant)
        weight = weight_in_keys(found[tenant]) if tenant in found else usual
        if weight != usual:
            local[tenant] = weight
        differs |= abs(weight - before.get(tenant, usual)) > TOLERANCE * weight
        if n % STEP_TENANTS == 0:
            yield
    return local if differs or (before and not local) else None
