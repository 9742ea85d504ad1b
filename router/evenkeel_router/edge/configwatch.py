"""Reloading the configuration when its file changes.

Place in the flow: file → **watch** → `RouterState.apply`. A configuration that does not hold is logged with
every fault and shown in `/v1/state`; the last good one runs on (design §3).

The surprising thing: it compares content, not times. A mounted ConfigMap changes by swapping a symbolic link,
and an editor may write in several steps: half a file does not parse, and the next look sees the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from evenkeel_contract.faults import Fault
from evenkeel_contract.routerconfig import RouterConfig, parse_router_config

_log = logging.getLogger(__name__)

Apply = Callable[[RouterConfig], None]
Complain = Callable[[tuple[str, ...]], None]


def load(path: Path) -> tuple[RouterConfig | None, tuple[Fault, ...], bytes]:
    """Read a configuration: it or None, its faults, and the bytes that were read. Never raises."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return None, (Fault("", f"cannot be read: {error.strerror}"),), b""
    config, faults = parse_router_config(data)
    return config, faults, data


async def watch(
    path: Path, last: bytes, apply: Apply, complain: Complain, *, interval_s: float
) -> None:
    """Look at the file until cancelled. `last` is what runs now."""
    while True:
        await asyncio.sleep(interval_s)
        config, faults, data = await asyncio.to_thread(load, path)
        if data == last:
            continue
        last = data
        messages = tuple(str(fault) for fault in faults)
        complain(messages)
        if config is None:
            _log.error("the configuration does not hold; the last good one runs on: %s", messages)
            continue
        apply(config)
        _log.info("the configuration changed")
