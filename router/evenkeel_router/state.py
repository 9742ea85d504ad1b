"""Everything a router holds in memory, and how a changed configuration enters it.

Place in the flow: configwatch → **apply** → pipeline, discovery, metrics read it. One object, made by `app`
and handed to all; no module-level state.

The surprising thing: a change of configuration never touches what is in flight. Counters, buckets, the index
and the totals live on; a changed fleet policy starts from zero, which R8 allows.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from evenkeel_contract.routerconfig import (
    PrefixConfig,
    PrefixMode,
    ReplicaConfig,
    RouterConfig,
    SchedulingConfig,
)
from evenkeel_fairshare.bounds import dlpm_overshoot
from evenkeel_fairshare.cost import Cost, LinearCost
from evenkeel_fairshare.fleet.contract import FleetPolicy
from evenkeel_fairshare.fleet.registry import FleetPolicyConfig, make_policy
from evenkeel_fairshare.ledger import CarryRules, DemandMeter, Ledger
from evenkeel_fairshare.prefix.exact import ExactIndex
from evenkeel_fairshare.prefix.index import PrefixIndex
from evenkeel_fairshare.replica.deficit import WITHHELD

from evenkeel_router.api.identity import Directory
from evenkeel_router.api.inference import Limits
from evenkeel_router.fleet.activation import Activation
from evenkeel_router.fleet.selection import Fleet
from evenkeel_router.fleet.wait_queue import WaitQueue
from evenkeel_router.ledger.accounting import Accounting
from evenkeel_router.ledger.contacts import Peer, PeerContact, ReplicaReport
from evenkeel_router.ledger.fairness import Fairness
from evenkeel_router.ledger.persistence import Persistence
from evenkeel_router.ledger.weights import ConfiguredWeights
from evenkeel_router.prefix.kv_follower import Follower
from evenkeel_router.prefix.tokenised import Untokenised
from evenkeel_router.request.admission import Admission
from evenkeel_router.request.request_state import RequestState
from evenkeel_router.request.totals import RequestTotals, ttft_histogram
from evenkeel_router.transport.bodies import BODY_TIMEOUT_S, Budget
from evenkeel_router.transport.server import KEEP_ALIVE_S

MAX_BUFFERED_BYTES: Final = 1024 * 1024 * 1024
UNKNOWN_MAX_DEBT: Final = 1_000_000.0
"""U while neither the configuration nor a replica says what it is: twice what an 80 GB card makes possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Durations that no configuration sets; tests do."""

    probe_interval_s: float = 1.0
    rest_s: float = 1.0
    """The first rest of a replica that fails what others answer."""
    report_interval_s: float = 1.0
    settle_s: float = 30.0
    """How long a router looks around after its start before it takes an incarnation for dead that nobody names."""
    return_s: float = 30.0
    """How long a replica that left the configuration may come back as if nothing had been."""
    seal_interval_s: float = 10.0
    body_timeout_s: float = BODY_TIMEOUT_S
    keep_alive_s: float = KEEP_ALIVE_S
    kv_check_interval_s: float = 2.0
    """Silence of a replica's KV events after which it is asked whether there was more."""
    kv_pages_interval_s: float = 30.0
    """Between two questions for all that a replica holds: answers cost it more than a report."""


class RouterState:
    """The router's memory."""

    def __init__(
        self, config: RouterConfig, *, timing: Timing | None = None, incarnation: str | None = None
    ) -> None:
        """`incarnation` names this process among all routers that ever were; by default a new name."""
        self.config = config
        self.timing = timing if timing is not None else Timing()
        self.directory = Directory(config.tenancy, namespace=config.namespace)
        self.limits = _limits(config)
        self.admission = Admission(config.limits)
        self.totals = RequestTotals(cost_of(config.scheduling))
        self.totals.within_share_ttft_s = ttft_histogram(config.ttft_threshold_s)
        self.budget = Budget(MAX_BUFFERED_BYTES)
        self.wait_queue = WaitQueue()
        self.replicas: dict[str, ReplicaConfig] = {}
        self.fleet = Fleet(
            policy_of(config.scheduling),
            index_of(config.prefix),
            block_bytes=config.prefix.text_block_bytes,
        )
        self.activation = Activation(
            self.fleet, self.wait_queue, lambda: self.config, now=time.monotonic
        )
        self.untokenised = Untokenised()
        self.weights = ConfiguredWeights(config.tenancy)
        self.ledger = Ledger(
            incarnation or new_incarnation(),
            rules=carry_rules(config.scheduling),
            weights=self.weights,
        )
        self._sizes: set[tuple[int, int]] = set()
        """(longest prompt, KV pool) of the replicas that ever were."""
        self.fairness = Fairness(self.ledger)
        self.demand = DemandMeter()
        self.accounting = Accounting(
            self.ledger, cost=self.totals.cost, return_s=self.timing.return_s
        )
        self.active_requests: set[RequestState] = set()
        """What is between admission and its end."""
        self.reports: dict[str, ReplicaReport] = {}
        """What each replica's last report says of the replica itself, by name."""
        self.following: dict[str, Follower] = {}
        """Who follows each replica's KV events, by name; in tokens mode."""
        self.started_unix = time.time()
        self.draining = False
        self.in_sync = False
        """Whether discovery has said at least once which replicas there are."""
        self.peers: tuple[Peer, ...] | None = None
        """The other routers of the service, where discovery finds them; None until it did."""
        self.peer_contacts: dict[Peer, PeerContact] = {}
        """What every other router was heard to say."""
        self.persistence: Persistence | None = None
        """Who keeps the ledger in a store, if there is one."""
        self.config_faults: tuple[str, ...] = ()
        """Of a newer configuration that did not hold; empty while the newest one runs."""

    def replica_is_of_size(self, *, max_input_tokens: int, pool_tokens: int) -> None:
        """A replica says what fits into it. Of unequal ones the largest counts, also after it is gone."""
        self._sizes.add((max_input_tokens, pool_tokens))
        self._learn_rules()

    def _learn_rules(self) -> None:
        self.ledger.rules = carry_rules(self.config.scheduling, self._sizes)

    @property
    def store_trouble(self) -> str:
        """Why the ledger's store is away; empty while it is not."""
        return (self.persistence.trouble or "") if self.persistence is not None else ""

    def uncounted(self) -> Iterator[str]:
        """Replicas that take requests and whose service is in no ledger."""
        for member in self.fleet:
            if member.joined and not self.accounting.incarnation(member.name):
                yield member.name

    def apply(self, config: RouterConfig) -> None:
        """A changed configuration. Replicas are `discovery`'s business, listening ports nobody's."""
        before, self.config = self.config, config
        self.directory = Directory(config.tenancy, namespace=config.namespace)
        self.limits = _limits(config)
        self.admission.limits = config.limits
        if config.tenancy != before.tenancy:
            self.weights = self.ledger.weights = ConfiguredWeights(config.tenancy)
        if config.scheduling != before.scheduling:
            self.totals.cost = self.accounting.cost = cost_of(config.scheduling)
            self._learn_rules()
            self.fleet.replace_policy(policy_of(config.scheduling))
        if config.ttft_threshold_s != before.ttft_threshold_s:
            self.totals.within_share_ttft_s = ttft_histogram(config.ttft_threshold_s)
        if config.prefix != before.prefix:
            self.fleet.replace_index(
                index_of(config.prefix),
                block_bytes=config.prefix.text_block_bytes,
            )
        self.activation.look()


def new_incarnation() -> str:
    """A name for a router process. The oldest comes first: routers that come and go take over from nobody."""
    return f"{time.time_ns() // 1_000_000:013x}-{secrets.token_hex(4)}"


def carry_rules(
    scheduling: SchedulingConfig, sizes: Collection[tuple[int, int]] = ()
) -> CarryRules:
    """The range of the replicas' deficits: U = we·(longest prompt) + wq·(KV pool) of the largest of them."""
    overshoots = (
        dlpm_overshoot(
            max_input_tokens=longest,
            memory_tokens=pool,
            input_weight=scheduling.input_token_weight,
            output_weight=scheduling.output_token_weight,
        )
        for longest, pool in sizes
    )
    overshoot = scheduling.max_debt or max(overshoots, default=UNKNOWN_MAX_DEBT)
    return CarryRules(
        quantum=float(scheduling.client_quantum), overshoot=float(overshoot), withheld=WITHHELD
    )


def cost_of(scheduling: SchedulingConfig) -> Cost:
    """h = we·extend + wq·output."""
    return LinearCost(float(scheduling.input_token_weight), float(scheduling.output_token_weight))


def policy_of(scheduling: SchedulingConfig) -> FleetPolicy:
    """The configured fleet policy, from zero."""
    config = FleetPolicyConfig(cost=cost_of(scheduling), worker_quantum=scheduling.worker_quantum)
    return make_policy(scheduling.fleet_policy.value, config)


def index_of(prefix: PrefixConfig) -> PrefixIndex | ExactIndex:
    """An empty index for the configured mode."""
    kind = ExactIndex if prefix.mode is PrefixMode.TOKENS else PrefixIndex
    return kind(max_blocks=prefix.max_blocks)


def _limits(config: RouterConfig) -> Limits:
    return Limits(config.model, config.limits.max_output_tokens)
