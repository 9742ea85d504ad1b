"""Other cells of a service: `spec.federation` (docs/design/cells.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from evenkeel_contract.federationconfig import (
    MAX_CELLS,
    NO_CERTIFICATE,
    NO_TOKEN,
    CellConfig,
    CellName,
    FederationConfig,
    is_certificates,
    is_token,
)
from evenkeel_contract.spec.parts import SecretKeyRef
from evenkeel_contract.values import Duration, Length, UniqueBy, Url

_INTERVAL: Final = Duration.from_plain("5s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Another cell of the service: a fleet with its own routers, usually in another cluster."""

    name: CellName
    """Name of the cell: the value of `federation.cell` there."""
    url: Annotated[str, Url(bare=True), Length(1, 512)]
    """Address at which its routers take requests, such as `https://llm.oslo.example.com`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    """Other cells of the same service and the same tenants."""

    cell: CellName
    """Name of this cell. No other cell has it."""
    token_secret_ref: SecretKeyRef
    """Secret entry with the token that all cells share, of 16 characters or more. Who has it can lower the weights of tenants in all cells."""
    ca_secret_ref: SecretKeyRef | None = None
    """Secret entry with the certificates (PEM) of the authority that signed those of the other cells. If not set, routers trust the
    authorities of their image."""
    cells: Annotated[tuple[Cell, ...], UniqueBy(("name",)), Length(1, MAX_CELLS)]
    """All other cells."""
    interval: Duration = _INTERVAL
    """Time between two exchanges of figures, from 100ms to 10m. A cell that is silent for three of them does not count. Use the same
    in all cells."""


@dataclass(frozen=True, slots=True)
class FederationSecrets:
    """What the Secrets that `spec.federation` names contain."""

    token: str
    ca: str | None = None


class SecretUse(NamedTuple):
    """An entry of a Secret that `spec.federation` names."""

    field: str
    """The field that names it."""
    ref: SecretKeyRef
    is_usable: Callable[[str], bool]
    problem: str
    """What an entry is that is not usable."""


def secrets_of(federation: Federation) -> Iterator[SecretUse]:
    """The entries of Secrets that a service needs to be joined, in the order of `FederationSecrets`."""
    yield SecretUse("tokenSecretRef", federation.token_secret_ref, is_token, NO_TOKEN)
    if federation.ca_secret_ref is not None:
        yield SecretUse("caSecretRef", federation.ca_secret_ref, is_certificates, NO_CERTIFICATE)


def federation_config(
    spec: Federation | None, secrets: FederationSecrets | None
) -> FederationConfig | None:
    """The other cells as routers get them; None without any, or without what the Secrets contain."""
    if spec is None or secrets is None:
        return None
    return FederationConfig(
        cell=spec.cell,
        token=secrets.token,
        ca=secrets.ca,
        cells=tuple(
            CellConfig(name=cell.name, url=cell.url.rstrip("/"))
            for cell in sorted(spec.cells, key=lambda cell: cell.name)
        ),
        interval_s=spec.interval.seconds,
    )
