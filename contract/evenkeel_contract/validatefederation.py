"""The rules of `spec.federation` across its fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from evenkeel_contract.federationconfig import LEAST_INTERVAL_S, MAX_INTERVAL_S, own_name_faults
from evenkeel_contract.spec.resources import FairInferenceService
from evenkeel_contract.values import Fault


def cells_name_this_cell(service: FairInferenceService) -> Iterator[Fault]:
    federation = service.spec.federation
    if federation is not None:
        names = [cell.name for cell in federation.cells]
        yield from own_name_faults(federation.cell, names, "spec.federation")


def exchange_is_too_fast_or_too_slow(service: FairInferenceService) -> Iterator[Fault]:
    federation = service.spec.federation
    if federation is None:
        return
    interval = federation.interval
    if not LEAST_INTERVAL_S <= interval.seconds <= MAX_INTERVAL_S:
        yield Fault("spec.federation.interval", f"must be from 100ms to 10m, not {interval.text}")


FEDERATION_RULES: Final[Sequence[Callable[[FairInferenceService], Iterable[Fault]]]] = (
    cells_name_this_cell,
    exchange_is_too_fast_or_too_slow,
)
