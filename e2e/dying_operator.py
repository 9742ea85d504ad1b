"""The operator, but for a process that ends without a word right after its n-th write (`DIES_AFTER`)."""

from __future__ import annotations

import os
import sys
from typing import Any, cast

from evenkeel_operator.__main__ import main
from evenkeel_operator.cluster.client import KubeClient


class _Countdown:
    left = int(os.environ["DIES_AFTER"])


_once = KubeClient._once


async def _dying(self: KubeClient, method: str, path: str, *rest: Any) -> dict[str, Any]:
    answer = await _once(self, method, path, *rest)
    # The Lease is none of a pass's steps.
    if method != "GET" and "/leases" not in path:
        _Countdown.left -= 1
        if _Countdown.left <= 0:
            os._exit(9)
    return answer


cast(Any, KubeClient)._once = _dying  # the one seam to the network

if __name__ == "__main__":
    sys.exit(main())
