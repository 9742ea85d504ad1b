"""`evenkeel-operator --router-image … --sglang-image … --simulator-image … --download-image …`: run the operator.

SIGTERM and SIGINT stop it; it releases its Lease, so that another process leads at once. Exit code 1 if the Lease is
lost or the probe port is taken, 2 for invalid arguments or missing credentials.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from evenkeel_kube.client import ClusterError

from evenkeel_operator.app import run
from evenkeel_operator.settings import parse_arguments

_log = logging.getLogger(__name__)


def main() -> int:
    """Run the operator; returns the exit code."""
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
        _log.error("cannot listen on the probe port: %s", error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
