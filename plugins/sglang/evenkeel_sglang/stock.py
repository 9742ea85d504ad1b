"""An engine whose SGLang does not fit the plug-in: it schedules in SGLang's own order, and routers order its queue (R12).

The engine's first process answers on the reports port, for as long as the engine lives, that the policy is inactive. Its other
processes set the metrics: SGLang decides only after the first one has loaded its plug-ins where samples go.
"""

from __future__ import annotations

import logging
import multiprocessing
import sys
from collections.abc import Sequence
from typing import Final

from evenkeel_contract.enginesettings import EngineSettings
from evenkeel_plugin.inactive import serve

from evenkeel_sglang.seams import installed

logger = logging.getLogger(__name__)
_POLICY_FLAG: Final = "--schedule-policy"
_HOST_FLAG: Final = "--host"
_DEFAULT_HOST: Final = "127.0.0.1"
"""SGLang's own default of `--host`."""


def start(reason: str, settings: EngineSettings) -> None:
    """Let this process of the engine run without the policy. `reason`: what does not fit."""
    if multiprocessing.parent_process() is not None:
        from evenkeel_plugin import metrics

        metrics.inactive(reason)
        return
    host, _ = split(sys.argv, _HOST_FLAG)
    _, sys.argv[:] = split(sys.argv, _POLICY_FLAG)  # SGLang does not know Evenkeel's names
    server = serve(reason, settings, host=host or _DEFAULT_HOST)
    logger.error(
        "evenkeel: this SGLang (%s) does not fit the plug-in: %s. The engine schedules in SGLang's own order; "
        "routers order its queue, by the answers on port %d. EVENKEEL_ON_MISMATCH=Refuse stops it instead.",
        installed(),
        reason,
        server.port,
    )


def split(arguments: Sequence[str], flag: str) -> tuple[str | None, list[str]]:
    """The last value of a flag, and the arguments without it. Both forms count: `--flag value` and `--flag=value`."""
    value, others, words = None, [], iter(arguments)
    for word in words:
        if word == flag:
            value = next(words, None)
        elif word.startswith(f"{flag}="):
            value = word.removeprefix(f"{flag}=")
        else:
            others.append(word)
    return value, others
