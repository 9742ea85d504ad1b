"""`python -m e2e.rig prepare | up | down | images | status | env`: a real two-node Kubernetes on a bare Debian machine.

No container engine and no image registry is needed; root is. Everything lives in namespaces of its own.
"""

from __future__ import annotations

import argparse
import sys

from e2e.rig import cluster, machine
from e2e.rig.errors import NotHereError
from e2e.rig.images import product_archives
from images.errors import BuildError

NOT_HERE = 77  # automake's "skipped"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.rig", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser(
        "prepare", help="install and build what is missing; exit code 77 where it cannot be had"
    )
    verbs.add_parser("up", help="bring the cluster up (quick when it is up)")
    verbs.add_parser("down", help="tear it down; leaves nothing")
    verbs.add_parser("images", help="build the product's images and load them into the cluster")
    verbs.add_parser("status", help="say whether it is up")
    verbs.add_parser("env", help="print what a shell needs: eval $(python -m e2e.rig env)")
    verb = parser.parse_args(arguments).verb
    actions = {
        "prepare": machine.prepare,
        "up": cluster.up,
        "down": cluster.down,
        "images": lambda: cluster.load_images(product_archives()),
        "status": cluster.status,
        "env": cluster.environment,
    }
    try:
        actions[verb]()
    except NotHereError as error:
        print(f"rig: {error}", file=sys.stderr)
        return NOT_HERE
    except BuildError as error:
        print(f"rig: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
