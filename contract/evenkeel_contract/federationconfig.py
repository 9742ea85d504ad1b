"""The configuration of a router whose fleet is one of several cells."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from evenkeel_contract.key import MAX_NAME_BYTES
from evenkeel_contract.values import PRINTABLE, Fault, Length, Range, UniqueBy, Url, show

LEAST_TOKEN: Final = 16
MAX_TOKEN: Final = 4096
MAX_CELLS: Final = 1000
MAX_CA_BYTES: Final = 512 * 1024
LEAST_INTERVAL_S: Final = 0.1
MAX_INTERVAL_S: Final = 600.0
NO_CERTIFICATE: Final = "has no certificate in the form of PEM"
NO_TOKEN: Final = (
    f"is no token: it must have {LEAST_TOKEN} to {MAX_TOKEN} printable ASCII characters"
)
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----([^-]+)-----END CERTIFICATE-----")

CellName = Annotated[str, Length(1, MAX_NAME_BYTES), PRINTABLE]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellConfig:
    """Another cell of the service: a fleet with a ledger of its own."""

    name: CellName
    url: Annotated[str, Url(bare=True), Length(1, 2048)]
    """`https://host` where its routers take requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationConfig:
    """Other cells of the same service and the same tenants: each tenant's sum over all of them follows its weight (R21)."""

    cell: CellName
    """The name of this cell."""
    token: Annotated[str, Length(LEAST_TOKEN, MAX_TOKEN), PRINTABLE]
    """Bearer token that all cells share. Who has it can read what each tenant was served."""
    ca: Annotated[str, Length(1, MAX_CA_BYTES)] | None = None
    """Certificates (PEM) that sign those of the other cells. None: the system's."""
    cells: Annotated[tuple[CellConfig, ...], UniqueBy(("name",)), Length(1, MAX_CELLS)]
    """All other cells."""
    interval_s: Annotated[float, Range(LEAST_INTERVAL_S, MAX_INTERVAL_S)] = 5.0
    """Interval of the exchange and of new weights. After three of them without an answer a cell does not count."""


def is_token(text: str) -> bool:
    """Whether the cells may use a text as their token."""
    return LEAST_TOKEN <= len(text) <= MAX_TOKEN and text.isascii() and text.isprintable()


def is_certificates(text: str) -> bool:
    """Whether a text has certificates in the form of PEM (RFC 7468), and all of them are base64."""
    found = _PEM.findall(text) if len(text) <= MAX_CA_BYTES else []
    try:
        return bool(found) and all(b64decode(one) for one in found)
    except ValueError:
        return False


def own_name_faults(cell: str, names: Sequence[str], path: str) -> Iterator[Fault]:
    """A fault for each of the other cells, at `path`, that has the name of this one."""
    for index, name in enumerate(names):
        if name == cell:
            message = f"{show(name)} is the name of this cell; list the other cells only"
            yield Fault(f"{path}.cells[{index}].name", message, about=(f"{path}.cell",))


def federation_faults(config: FederationConfig | None) -> Iterator[Fault]:
    """The rules of `federation` in a RouterConfig."""
    if config is None:
        return
    yield from own_name_faults(config.cell, [one.name for one in config.cells], "federation")
    if config.ca is not None and not is_certificates(config.ca):
        yield Fault("federation.ca", f"{NO_CERTIFICATE}; give the text between BEGIN and END, too")
