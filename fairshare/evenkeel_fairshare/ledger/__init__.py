"""Service of all clients over all replicas and routers (design §4, R3 to R6).

`merge_table` → `router_account` → `counted_account` → `replica_account` (one incarnation) → `closing` (its end) → `closed_totals` and
`compaction` (ended incarnations) → `exchange` (its messages) → `ledger` (the whole state, service for metrics) → `balances` (seeds).
docs/design/0003-hierarchical-counters.md has the model and the proofs.
"""

from evenkeel_fairshare.ledger.balances import Seed, position, position_of_tenant, promise
from evenkeel_fairshare.ledger.closing import CarryRules, EqualWeights, Weights
from evenkeel_fairshare.ledger.compaction import CompactionRules, Compactor
from evenkeel_fairshare.ledger.exchange import NO_VERSIONS, Delta, Digest, Progress
from evenkeel_fairshare.ledger.ledger import Ledger
from evenkeel_fairshare.ledger.replica_rows import ReplicaRow, tenant_of

__all__ = [
    "NO_VERSIONS",
    "CarryRules",
    "CompactionRules",
    "Compactor",
    "Delta",
    "Digest",
    "EqualWeights",
    "Ledger",
    "Progress",
    "ReplicaRow",
    "Seed",
    "Weights",
    "position",
    "position_of_tenant",
    "promise",
    "tenant_of",
]
