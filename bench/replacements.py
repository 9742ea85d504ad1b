"""How much a lead drifts with each replica that is replaced, with a warm-up and without (design R7).

    python -m bench.replacements [--times 60] [--between 6] [--seed 1]

From the repository root, half a minute or so. Tenants of weight 4 and 1 at a fleet of two replicas and two routers in virtual time
(tests/support/replacements.py); the lead is the heavy one's service over its weight, less the other's. docs/design/0003 says why.
"""

from __future__ import annotations

import argparse
from random import Random

from evenkeel_contract.enginesettings import WARMUP_S

from tests.support.replacements import Fleet

OPENED = ((100, 40), (200, 80), (300, 300))
"""Requests that either tenant keeps open."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=60)
    parser.add_argument("--between", type=float, default=6.0, help="seconds of virtual time")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    for gold, bronze in OPENED:
        for warmup_s in (0.0, WARMUP_S):
            fleet = Fleet(Random(given.seed), {"gold": gold, "bronze": bronze}, warmup_s)
            fleet.begin()
            leads = [fleet.lead()]
            for _ in range(given.times):
                fleet.replace(given.between)
                leads.append(fleet.lead())
            drift = (leads[-1] - leads[0]) / given.times
            print(
                f"open {gold:3} and {bronze:3}  warm-up {warmup_s:.0f} s  each replacement {drift:5.0f}"
                f"  gap {max(leads) - min(leads):6.0f}"
            )


if __name__ == "__main__":
    main()
