"""Rows of the account of a replica incarnation: their columns, and the names of those that are no client's (design R3)."""

from __future__ import annotations

from typing import Final, NamedTuple


class ReplicaRow(NamedTuple):
    """What the ledger reads of a client in a replica's report. Totals first, then state."""

    client: str
    """`namespace/tenant/client`."""
    service: float = 0.0
    """Weighted tokens, as charged."""
    normalised: float = 0.0
    """Service divided by the client's weight at the time of each charge."""
    requests: float = 0.0
    """Requests admitted."""
    deficit: float = 0.0
    seed: float = 0.0
    """The first deficit of the client at this incarnation (R5)."""
    waiting: float = 0.0
    running: float = 0.0
    tenant_deficit: float = 0.0
    tenant_seed: float = 0.0


# Columns of a replica's row for a client: the version instead of the name, then as in `ReplicaRow`.
_column = ReplicaRow._fields.index
SERVICE: Final = _column("service")
"""Column of service, the first number after the version in every table of clients."""
NORMALISED: Final = _column("normalised")
REQUESTS: Final = _column("requests")
DEFICIT: Final = _column("deficit")
SEED: Final = _column("seed")
WAITING: Final = _column("waiting")
RUNNING: Final = _column("running")

# A replica's row for a tenant: version, deficit, seed.
TENANT_DEFICIT: Final = 1
TENANT_SEED: Final = 2

# A router's row for a client: version, service received, seed promised, and what of the client's service the replica had reported before
# that router received any of it.
PROMISED: Final = 2
BASE: Final = 3

# A router's row for a tenant: version, seed promised.
TENANT_PROMISED: Final = 1

# A mark: version, then a replica's row as it was: for a client service, deficit, seed, queued; for a tenant
# deficit, seed as in its row.
MARKED_SERVICE: Final = 1
MARKED_DEFICIT: Final = 2
MARKED_SEED: Final = 3
MARKED_QUEUED: Final = 4


NO_NUMBERS: Final = (0.0,) * (len(ReplicaRow._fields) - 3)
"""A replica's row of a client without anything."""

Grown = dict[str, float]
"""Client with a changed row → what its service (`ReplicaAccount.served`) grew by, weighted tokens. It may be 0, or negative."""

REST: Final = "*"
"""Last part of the name of a tenant's rest row. Names in identities are escaped, and no client has it."""


def rest_of(tenant: str) -> str:
    """The name of a tenant's rest row."""
    return f"{tenant}/{REST}"


def is_mark(name: str) -> bool:
    """Whether a row says that the replica gave back the row of a client."""
    return name.endswith(REST) and not name.endswith(f"/{REST}")


def tenant_of(client: str) -> str:
    """`namespace/tenant` of `namespace/tenant/client`."""
    return client.rpartition("/")[0]
