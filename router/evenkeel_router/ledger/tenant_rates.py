"""What tenants are served per second, for the weights of a cell (R21) or of one of several services (R22)."""

from __future__ import annotations

from collections.abc import Mapping

from evenkeel_contract.key import LEAST_WEIGHT, MAX_WEIGHT

from evenkeel_router.ledger.fairness import MemberFigures


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
