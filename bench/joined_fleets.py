"""Two local fleets with skewed demand, alone and joined by `federation` (R21): what two tenants get of what they are owed.

    python -m bench.joined_fleets [--seconds 20] [--passed-s 6]

Each fleet is a simulated replica behind a router with its ports, at four times real time; joined routers ask each other every half
second. Ads floods both fleets, law only the second one. With equal weights law is owed the second fleet, and with a weight of 1 beside
2 it is owed two thirds of it. Alone each fleet gives it half of that. The figures are of `--seconds`, after `--passed-s` in which the
weights may settle.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from typing import Final

from tests.support.cells import Served, served_under_floods, two_cells

WEIGHTS: Final = ({"ads": 1, "law": 1}, {"ads": 2, "law": 1})


def row(name: str, found: Served) -> str:
    """A row of the table."""
    law, ads = found.law_over_owed, found.ads_over_owed
    return f"| {name} | {law:.3f} | {ads:.3f} | {100 * max(abs(law - 1), abs(ads - 1)):.1f} % |"


async def measure(
    weights: Mapping[str, int], *, joined: bool, passed_s: float, seconds: float
) -> Served:
    """One run."""
    async with two_cells(joined=joined, weights=weights) as cells:
        return await served_under_floods(
            cells, passed_s=passed_s, measured_s=seconds, weights=weights
        )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--passed-s", type=float, default=6.0)
    given = parser.parse_args()
    print(
        "| weights of ads and law, fleets | law, of what it is owed | ads | largest share error |"
    )
    print("|---|---:|---:|---:|")
    for weights in WEIGHTS:
        for name, joined in (("alone", False), ("joined", True)):
            run = measure(weights, joined=joined, passed_s=given.passed_s, seconds=given.seconds)
            print(row(f"{weights['ads']}:{weights['law']}, {name}", asyncio.run(run)), flush=True)


if __name__ == "__main__":
    main()
