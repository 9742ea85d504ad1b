"""The figures that a cell sends the other cells of its service: `GET /evenkeel/v1/cell` on the traffic port, with the cells' token (R21).

The answer is the version, one byte, and MessagePack. Only tenants are named, as rates: neither clients nor requests.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

import msgspec

from evenkeel_contract.messages import pack, unpack

CELL_PATH: Final = "/evenkeel/v1/cell"
CELL_TYPE: Final = "application/vnd.msgpack"
CELL_VERSION: Final = 1
MAX_CELL_BYTES: Final = 64 * 1024 * 1024
"""Most bytes of an answer: about a million tenants."""

Rate = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
"""Weighted tokens per second."""


class TenantRates(NamedTuple):
    """One tenant in one cell."""

    served: Rate
    demand: Rate
    """Rate of service if it were alone there."""


class CellFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One cell over its last interval."""

    cell: str
    capacity: Rate
    """Service of all tenants."""
    tenants: dict[str, TenantRates]
    """`namespace/tenant`, escaped → figures of each tenant with demand."""

    @property
    def is_full(self) -> bool:
        """Whether it cannot serve all demand."""
        return sum(one.demand for one in self.tenants.values()) > self.capacity


class CellMessageError(ValueError):
    """An answer that cannot be read."""


def encode(figures: CellFigures) -> bytes:
    """The answer as bytes."""
    return pack(CELL_VERSION, figures)


def decode(data: bytes) -> CellFigures:
    """Read an answer; raises `CellMessageError`."""
    return unpack(_decoder, data, CELL_VERSION, what="figures of a cell", error=CellMessageError)


_decoder = msgspec.msgpack.Decoder(CellFigures)
