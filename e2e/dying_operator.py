"""The operator in a process that ends right after its n-th write (`DIES_AFTER`), without clean-up."""

from __future__ import annotations

import os
import sys
from typing import Any, cast

from evenkeel_kube.client import KubeClient
from evenkeel_operator.__main__ import main


class _Countdown:
    left = int(os.environ["DIES_AFTER"])


_write = KubeClient._write


async def _dying(
    self: KubeClient, method: str, path: str, *rest: Any, **named: Any
) -> dict[str, Any]:
    answer = await _write(self, method, path, *rest, **named)
    # Writes of the Lease do not count: they are not part of a pass.
    if "/leases" not in path:
        _Countdown.left -= 1
        if _Countdown.left <= 0:
            os._exit(9)
    return answer


cast(Any, KubeClient)._write = _dying

if __name__ == "__main__":
    sys.exit(main())
