"""Who was served what, over all replicas that ever were and all routers (design §4, R3 to R6).

`table` → `page` (one incarnation) → `closing` (its end) → `book` and `sealing` (all that are gone) → `ledger`
(all of it, and the exchange) → `standing` (seeds) · `figures` and `levels` (metrics) · `demand` (scaling).
docs/design/0003-hierarchical-counters.md has the model and the proofs.
"""

from evenkeel_fairshare.ledger.closing import CarryRules, EqualWeights, Weights
from evenkeel_fairshare.ledger.demand import DemandMeter
from evenkeel_fairshare.ledger.ledger import Delta, Digest, Ledger
from evenkeel_fairshare.ledger.page import ReplicaRow, Totals, tenant_of
from evenkeel_fairshare.ledger.sealing import Sealer, SealingRules
from evenkeel_fairshare.ledger.service_index import ServiceIndex
from evenkeel_fairshare.ledger.standing import Seed, promise, standing, standing_of_tenant

__all__ = [
    "CarryRules",
    "Delta",
    "DemandMeter",
    "Digest",
    "EqualWeights",
    "Ledger",
    "ReplicaRow",
    "Sealer",
    "SealingRules",
    "Seed",
    "ServiceIndex",
    "Totals",
    "Weights",
    "promise",
    "standing",
    "standing_of_tenant",
    "tenant_of",
]
