"""DLPM in the order that Algorithm 1 prints, lines 16 to 24: the reference for the shipped policy.

Only the order of proposals is here. Deficits are those of `Dlpm`, since the order changes none of them. A pass costs
O(requests) per walk over the queue, and each CheckRefill O(members).
"""

from __future__ import annotations

from collections.abc import Iterator

from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.deficit import Account, DeficitLevel
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.lpm import by_prefix


class PrintedDlpm(Dlpm):
    """Walks over the queue in LPM order; a refill does not go back to requests that this walk has passed over."""

    def _eligible(self) -> Iterator[Request]:
        order = by_prefix(self._queue)  # line 16
        progressed = True
        while order and progressed:  # line 17, which ends by §1.13 a
            progressed, passed_over = False, []
            for request in order:
                nodes = self._queue[request].path  # its tenant, then its client
                for node in nodes:
                    if not is_eligible(node):  # line 19
                        progressed |= check_refill(node.level)
                    if not is_eligible(node):  # line 20
                        passed_over.append(request)
                        break
                else:
                    yield request  # lines 21 to 24
                    progressed |= request in self._running
            order = passed_over


def is_eligible(account: Account) -> bool:
    """q_i > 0, deferred refills counted."""
    return account.positive_from <= account.level.horizon


def check_refill(level: DeficitLevel) -> bool:
    """CheckRefill, lines 3 to 8: a refill if no queued member is eligible, as large as it takes (§1.13 b).

    Whether there was one.
    """
    queued = [account for account in level.members.values() if account.waiting]
    if not queued or any(map(is_eligible, queued)):
        return False
    level.refill_to(min(account.positive_from for account in queued))
    return True
