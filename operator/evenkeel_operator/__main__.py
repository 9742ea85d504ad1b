"""`evenkeel-operator --router-image … --sglang-image … --simulator-image …`: run the operator.

SIGTERM and SIGINT end it; it gives its Lease back, so that another one acts at once. Exit code 1 where the lease was
lost or the probes' port is taken, 2 for arguments that do not hold or credentials that are not there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from evenkeel_kube.errors import ClusterError

from evenkeel_operator.app import run
from evenkeel_operator.settings import parse_arguments

_log = logging.getLogger(__name__)


def main() -> int:
    """The exit code."""
    settings = parse_arguments(sys.argv[1:], os.environ)
    logging.basicConfig(
        level=settings.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    logging.getLogger("kopf").setLevel(logging.WARNING)
    try:
        return asyncio.run(run(settings))
    except ClusterError as error:
        _log.error("%s", error)
        return 2
    except OSError as error:  # a port that is taken, most likely
        _log.error("cannot serve probes: %s", error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
