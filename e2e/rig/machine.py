"""What the rig needs of a machine: root, Debian packages, Go modules. `prepare` gets what can be had.

Nothing is done where everything is there; what cannot be had is `NotHereError`, so that a test run may say so and go on.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from e2e.rig.components import binaries, fetch_modules
from e2e.rig.definitions import definitions
from e2e.rig.errors import NotHereError, RigError
from e2e.rig.layout import IPV6
from e2e.rig.processes import succeeds
from images.base import check_distribution

_PROGRAMS: Final = (
    "runc", "buildah", "ip", "nft", "conntrack", "openssl", "unshare", "dpkg-deb",
)  # fmt: skip
PACKAGES: Final = (
    "runc", "containernetworking-plugins", "buildah",
    "iproute2", "iptables", "nftables", "conntrack", "openssl",
)  # fmt: skip

LOCK_WAIT_S: Final = 600.0
LOCK_RETRY_S: Final = 2.0
_LOCKED: Final = re.compile(r"Could not get lock|Unable to (?:acquire|lock)")


def check() -> None:
    """Raises `NotHereError` unless a cluster can be brought up here and now."""
    if os.environ.get("E2E_FAMILY", "IPv4") not in ("IPv4", "IPv6"):
        raise RigError("E2E_FAMILY must be IPv4 or IPv6")
    if IPV6 and not Path("/proc/net/if_inet6").exists():
        raise NotHereError("this kernel has no IPv6 (/proc/net/if_inet6)")
    if os.geteuid() != 0:
        raise NotHereError("root is needed (namespaces, control groups); or set E2E_KUBECONFIG")
    missing = _missing()
    if missing:
        raise NotHereError(f"missing: {', '.join(missing)}; install {' '.join(PACKAGES)}")
    check_distribution()


def prepare() -> None:
    """Install packages and build programs, where they are missing."""
    if "E2E_KUBECONFIG" in os.environ:
        return
    if os.geteuid() == 0 and _missing():
        _install()
    check()
    fetch_modules()
    binaries()
    with suppress(NotHereError):  # tests that need them are skipped
        definitions()


def _missing() -> list[str]:
    found = [name for name in _PROGRAMS if shutil.which(name) is None]
    return found if Path("/usr/lib/cni/bridge").exists() else [*found, "CNI plug-ins"]


def _install() -> None:
    if shutil.which("apt-get") is None:
        raise NotHereError(f"there is no apt-get to install {' '.join(PACKAGES)} with")
    print(f"installing {' '.join(PACKAGES)} …", flush=True)
    # Their services are not wanted: the rig starts its own, in namespaces of its own.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    install = ["apt-get", "install", "--yes", "-qq", "--no-install-recommends", *PACKAGES]
    for attempt in (install, ["apt-get", "update", "-qq"], install):
        done = _once_unlocked(attempt, environment)
        if attempt is install and done.returncode == 0:
            break
    else:
        raise NotHereError(f"apt-get cannot install what is missing: {done.stderr.strip()[-500:]}")
    if not succeeds("runc", "--version"):
        raise NotHereError("runc was installed and does not start")


def _once_unlocked(
    command: list[str], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """The result of a command of apt, which waits until no other process holds apt's lock."""
    deadline_s, said = time.monotonic() + LOCK_WAIT_S, False
    while True:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        locked = done.returncode != 0 and _LOCKED.search(done.stderr) is not None
        if not locked or time.monotonic() > deadline_s:
            return done
        if not said:
            print("another process holds apt's lock; waiting for it …", flush=True)
            said = True
        time.sleep(LOCK_RETRY_S)
