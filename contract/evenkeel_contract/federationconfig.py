"""The configuration of a router whose fleet is one of several cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from evenkeel_contract.key import MAX_NAME_BYTES
from evenkeel_contract.values import PRINTABLE, Length, Range, UniqueBy, Url

_Name = Annotated[str, Length(1, MAX_NAME_BYTES), PRINTABLE]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellConfig:
    """Another cell of the service: a fleet with a ledger of its own."""

    name: _Name
    url: Annotated[str, Url(bare=True)]
    """`https://host` where its routers take requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationConfig:
    """Other cells of the same service and the same tenants: each tenant's sum over all of them follows its weight (R21)."""

    cell: _Name
    """The name of this cell."""
    token: Annotated[str, Length(16, 4096), PRINTABLE]
    """Bearer token that all cells share. Who has it can read what each tenant was served."""
    cells: Annotated[tuple[CellConfig, ...], UniqueBy(("name",))]
    """All other cells."""
    interval_s: Annotated[float, Range(0.1, 600)] = 5.0
    """Interval of the exchange and of new weights. After three of them without an answer a cell does not count."""
