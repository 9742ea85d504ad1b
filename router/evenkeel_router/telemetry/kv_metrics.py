"""How well the router sees its replicas' caches, as metrics: followers' state and totals, by replica.

Place in the flow: prefix/kv_follower → **collect** → `/metrics`. Only in tokens mode, and only of replicas that publish.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import Metric

from evenkeel_router.prefix.kv_follower import Counts, Standing
from evenkeel_router.telemetry.families import counter, gauge
from evenkeel_router.telemetry.rooms import Rooms

_REPLICA: Final = ("model_name", "replica")
_TOTALS: Final[tuple[tuple[str, str, Callable[[Counts], int]], ...]] = (
    ("batches", "Batches of KV events applied.", lambda counts: counts.batches),
    ("gaps", "Batches that did not come, and were asked for.", lambda counts: counts.gaps),
    ("replays", "Replays asked for, those that only made sure included.",
     lambda counts: counts.replays),
    ("overruns", "Times that what was missing was not kept any more.",
     lambda counts: counts.overruns),
    ("takeovers", "Times that what the replica told it holds was taken over.",
     lambda counts: counts.takeovers),
    ("unreadable", "Batches that did not hold.", lambda counts: counts.unreadable),
)  # fmt: skip


def kv_metrics(rooms: Rooms) -> Iterator[Metric]:
    """One family after another."""
    model = rooms.settings.config.model
    followers = list(rooms.prefixes.followers.items())
    in_sync = gauge("replica_kv_in_sync", "1 where the view of its cache is exact.", _REPLICA)
    standing = gauge(
        "replica_kv_standing", "1 at how far the view can be trusted.", (*_REPLICA, "standing")
    )
    age = gauge(
        "replica_kv_batch_age_seconds", "Since the last batch, by the replica's clock.", _REPLICA
    )
    for name, follower in followers:
        now = follower.standing
        in_sync.add_metric((model, name), float(now is Standing.IN_SYNC))
        for one in Standing:
            standing.add_metric((model, name, one.value), float(one is now))
        if follower.last_batch_unix_s is not None:
            age.add_metric((model, name), time.time() - follower.last_batch_unix_s)
    yield from (in_sync, standing, age)
    for what, help_text, of in _TOTALS:
        family = counter(f"replica_kv_{what}", help_text, _REPLICA)
        for name, follower in followers:
            family.add_metric((model, name), of(follower.counts))
        yield family
