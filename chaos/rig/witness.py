"""A simulated replica that records its charges: they are in a file before any router receives them.

    python -m chaos.rig.witness FILE [flag of evenkeel_simulator.server …]

Everything is the simulator's own code. Whenever its engine starts a step, and before its event loop does anything
else, the totals are written over the file's begin; the page cache keeps them, however the process ends. So the
charges of a killed process are known exactly, also those that no router received.
"""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import Final

import msgspec
from evenkeel_simulator.server import __main__ as server
from evenkeel_simulator.server.replica import Replica

_LENGTH: Final = struct.Struct("<I")


class Testimony(msgspec.Struct):
    """The charges of one process."""

    incarnation: str
    service: dict[str, float]
    """By client: h as charged, before any weight."""
    computed: dict[str, float]
    """By client: h of all computed tokens, including uncharged ones (R11)."""


def testimony(path: Path) -> Testimony | None:
    """The record of a process; None if it never served a request."""
    data = path.read_bytes() if path.exists() else b""
    if len(data) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(data)
    return msgspec.json.decode(data[_LENGTH.size : _LENGTH.size + length], type=Testimony)


def main() -> int:
    """Serve; the first argument is the file of the record."""
    handle = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    publish = Replica._publish

    async def testify(replica: Replica) -> None:
        clients, cost = replica.engine.accounts.clients.items(), replica.settings.cost
        said = Testimony(
            incarnation=replica.settings.incarnation,
            service={name: totals.service for name, totals in clients},
            computed={
                name: cost.output_cost(0, 0, totals.output_tokens)
                + cost.input_cost(totals.extend_tokens)
                for name, totals in clients
            },
        )
        text = msgspec.json.encode(said)
        os.pwrite(handle, _LENGTH.pack(len(text)) + text, 0)
        await publish(replica)

    Replica._publish = testify  # type: ignore[method-assign, assignment]
    return server.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
