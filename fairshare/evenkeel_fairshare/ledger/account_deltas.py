"""Messages with the account of one replica incarnation: its versions, and what changed after them (design R3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from evenkeel_fairshare.ledger.merge_table import Rows


class RouterAccountDelta(NamedTuple):
    """All changes of a router account after version `base`, up to `head`."""

    router: str
    base: float
    head: float
    clients: Rows
    tenants: Rows
    marks: Rows
    tenant_marks: Rows

    def split(self, rows: int) -> Iterator[RouterAccountDelta]:
        """This delta in parts of at most `rows` rows of clients, as `ReplicaAccountDelta.split`."""
        nothing = RouterAccountDelta(
            self.router, self.base, self.base, Rows(), Rows(), Rows(), Rows()
        )
        *pieces, last = self.clients.split(rows)
        *marks, last_marks = self.marks.split(rows)
        for piece in pieces:
            yield nothing._replace(clients=piece)
        for piece in marks:
            yield nothing._replace(marks=piece)
        yield self._replace(clients=last, marks=last_marks)


class ReplicaAccountDelta(NamedTuple):
    """Changes of a replica account: all rows of the replica after its sequence `base`, up to `head`."""

    incarnation: str
    base: float
    head: float
    clients: Rows
    tenants: Rows
    accounts: tuple[RouterAccountDelta, ...]
    closed_by: tuple[str, ...]

    def split(self, rows: int) -> Iterator[ReplicaAccountDelta]:
        """This delta in parts of about `rows` rows. Only the last part has the final `head`.

        Merge them in this order, and none after a lost part: otherwise the lost rows are not requested again.
        """
        nothing = self._replace(
            head=self.base, clients=Rows(), tenants=Rows(), accounts=(), closed_by=()
        )
        *pieces, last = self.clients.split(rows)
        for piece in pieces:
            yield nothing._replace(clients=piece)
        small = []
        for account in self.accounts:
            for part in account.split(rows):
                if len(part.clients.names) + len(part.marks.names) < rows // 2:
                    small.append(part)
                else:
                    yield nothing._replace(accounts=(part,))
        yield self._replace(clients=last, accounts=tuple(small))

    def named_tenants(self) -> set[str]:
        """Every tenant with a row."""
        return {*self.tenants.names}.union(*(account.tenants.names for account in self.accounts))


class ReplicaAccountDigest(NamedTuple):
    """The versions of a replica account that a router has."""

    head: float
    accounts: dict[str, float]
    closed_by: frozenset[str]
