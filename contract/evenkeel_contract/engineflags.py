"""Flags and variables of engines that a spec may not hold, because Evenkeel sets them or because requests would bypass the policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

OWNED_FLAGS: Final = (
    "--api-key",
    "--client-quantum",
    "--enable-cache-report",
    "--enable-lora",
    "--enable-metrics",
    "--enable-prompt-tokens-details",
    "--host",
    "--input-token-weight",
    "--isolation",
    "--kv-events-config",
    "--kv-events-port",
    "--kv-replay-port",
    "--load-publish-endpoint",
    "--lora-modules",
    "--lora-paths",
    "--max-loras",
    "--max-loras-per-batch",
    "--model",
    "--model-path",
    "--order",
    "--output-token-weight",
    "--page-size",
    "--port",
    "--prefix-caching-hash-algo",
    "--rejoin",
    "--replica-policy",
    "--reports-port",
    "--schedule-policy",
    "--scheduler-cls",
    "--served-model-name",
    "--shutdown-timeout",
    "--tensor-parallel-size",
    "--tp",
    "--tp-size",
)
"""Flags of SGLang, vLLM and the simulator that Evenkeel sets from the rest of the spec."""

BYPASSING_FLAGS: Final = (
    "--data-parallel-size",
    "--diffusion-config",
    "--disaggregation-mode",
    "--dllm-algorithm",
    "--dp",
    "--dp-size",
    "--enable-pdmux",
    "--enable-priority-scheduling",
    "--kv-transfer-config",
    "--lora-drain-wait-threshold",
    "--scheduling-policy",
)
"""Flags of SGLang and vLLM with which something else than the replica policy orders requests. The plug-ins refuse them too."""

BYPASSING_VARIABLES: Final = ("SGLANG_RUST_SERVER",)
"""Environment variables that do the same. With SGLang's server in Rust requests have no client key, so all are of the unknown client."""

NO_FLAG_SHORTER_THAN: Final = 4  # characters of an abbreviated flag; `--h` is ambiguous


def canonical(flag: str) -> str:
    """vLLM also reads `--api_key` as `--api-key`, `--no-flag` as the opposite of a flag, and `--kv-events-config.topic` as a part of one."""
    return flag.replace("_", "-").partition(".")[0].replace("--no-", "--", 1)


def one_of(flags: Sequence[str], flag: str) -> str | None:
    """Which of `flags` the engine reads `flag` as: argparse accepts unambiguous abbreviations."""
    if flag in flags:
        return flag
    abbreviates = (one for one in flags if one.startswith(flag))
    return next(abbreviates, None) if len(flag) >= NO_FLAG_SHORTER_THAN else None
