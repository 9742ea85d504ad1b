"""What 100,000 users with signed keys and 20,000 tenants cost a router: memory, and CPU time for each look-up.

    python -m bench.identity_costs [--users 100000] [--tenants 20000]

The directory of a router looks up each key once in random order, and then the same 5,000 keys again, which it remembers. Keys of a
Secret are measured beside them. CPU time of this process, so that other work on the machine changes little.
"""

from __future__ import annotations

import argparse
import gc
import resource
import time
from random import Random

from evenkeel_contract.identityheaders import UndeclaredTenants
from evenkeel_contract.revocations import Revocation, RevocationList
from evenkeel_contract.routerconfig import (
    ApiKeyConfig,
    ClientConfig,
    TenancyConfig,
    TenantConfig,
)
from evenkeel_contract.signedkeys import SignedKey, SignedKeysConfig, SigningKeyConfig, mint
from evenkeel_router.api.claims import Claims
from evenkeel_router.api.identity import Directory

from tests.support.routers import sha256

SECRET = "s" * 32
AGAIN = 5000


def rss_mib() -> float:
    """Resident memory of this process, in MiB."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def cpu_us(directory: Directory, claims: list[Claims]) -> float:
    """CPU time of one look-up, in microseconds."""
    began = time.process_time()
    for one in claims:
        directory.identify(one)
    return (time.process_time() - began) / len(claims) * 1e6


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--tenants", type=int, default=20_000)
    given = parser.parse_args()
    now = int(time.time())
    keys = [
        mint(
            SignedKey(
                "a", f"k{user}", "ns", f"t{user % given.tenants}", f"u{user}", now, now + 86400
            ),
            SECRET,
        )
        for user in range(given.users)
    ]
    claims = [Claims([f"Bearer {key}"]) for key in keys]
    Random(0).shuffle(claims)
    listed = TenantConfig(
        namespace="ns",
        name="listed",
        clients=(ClientConfig(name="c"),),
        api_keys=(ApiKeyConfig(name="k", client="c", sha256=sha256("sk-1")),),
    )
    tenancy = TenancyConfig(
        tenants=(listed,),
        undeclared_tenants=UndeclaredTenants.ACCEPT,
        signed_keys=SignedKeysConfig(keys=(SigningKeyConfig(id="a", secret=SECRET),)),
    )
    revocations = RevocationList()
    directory = Directory(tenancy, namespace="ns", revocations=revocations, clock=time.time)
    before = rss_mib()
    first = cpu_us(directory, claims)
    after = rss_mib()
    again = cpu_us(directory, claims[-AGAIN:])
    secret = cpu_us(directory, [Claims(["Bearer sk-1"])] * AGAIN)
    revocations.merge([Revocation(f"r{i}", now, now + 86400) for i in range(10_000)], now)
    directory.forget()
    revoked = cpu_us(directory, claims[:AGAIN])
    print(f"{given.users} keys of {given.tenants} tenants, a key has {len(keys[-1])} characters")
    print(f"memory: {after - before:.1f} MiB more after all keys were seen")
    print(
        f"CPU: {first:.1f} us the first time, {again:.1f} us again, {secret:.1f} us for a key of a Secret"
    )
    print(
        f"with 10,000 revocations: {revoked:.1f} us the first time, {rss_mib() - after:.1f} MiB more"
    )


if __name__ == "__main__":
    main()
