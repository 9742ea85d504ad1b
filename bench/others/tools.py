"""Load generators of others: the command of each for the same load, and what its own report says. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

REQUESTS: Final = 24
CONCURRENCY: Final = 4
INPUT_TOKENS: Final = 300
OUTPUT_TOKENS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a program sends, and where it may write."""

    url: str
    model: str
    key: str
    tokenizer: Path
    folder: Path
    """An empty folder of this program alone."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a program reports, in its own figures. Milliseconds."""

    requests: int
    """Requests that were answered."""
    errors: int
    ttft_p50_ms: float
    ttft_p95_ms: float
    itl_p50_ms: float
    """Time between tokens as the program defines it: the mean of a request, or each single one."""
    latency_p50_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One load generator."""

    title: str
    program: str
    """Name of the file to run, in the folder `bin` of the environment."""
    words: Callable[[Target], list[str]]
    """Arguments; may write a configuration to the target's folder."""
    report: str
    """The file that it writes there."""
    read: Callable[[Mapping[str, Any]], Result]
    """The figures in this file."""


def _aiperf(to: Target) -> list[str]:
    return [
        *("profile", "--model", to.model, "--url", to.url, "--api-key", to.key),
        *("--endpoint-type", "chat", "--streaming", "--tokenizer", str(to.tokenizer)),
        *("--concurrency", str(CONCURRENCY), "--request-count", str(REQUESTS)),
        *("--synthetic-input-tokens-mean", str(INPUT_TOKENS)),
        *("--output-tokens-mean", str(OUTPUT_TOKENS), "--extra-inputs", "ignore_eos:true"),
        *("--use-server-token-count", "--random-seed", "1", "--ui", "none"),
        *("--artifact-dir", str(to.folder)),
    ]


def _of_aiperf(report: Mapping[str, Any]) -> Result:
    answered = int(report["request_count"]["avg"])
    return Result(
        requests=answered,
        errors=int(report["completed_request_count"]["avg"]) - answered,
        ttft_p50_ms=report["time_to_first_token"]["p50"],
        ttft_p95_ms=report["time_to_first_token"]["p95"],
        itl_p50_ms=report["inter_token_latency"]["p50"],
        latency_p50_ms=report["request_latency"]["p50"],
    )


def _guidellm(to: Target) -> list[str]:
    backend = f"kind=openai_http,target={to.url},model={to.model},api_key={to.key}"
    data = f"kind=synthetic_text,prompt_tokens={INPUT_TOKENS},output_tokens={OUTPUT_TOKENS}"
    return [
        *("run", "--backend", backend, "--profile", f"kind=concurrent,streams={CONCURRENCY}"),
        *("--constraint", f"kind=max_requests,count={REQUESTS}", "--data", data),
        *("--tokenizer", f"kind=hf_auto,model={to.tokenizer}", "--disable-progress"),
        *("--output", f"kind=json,path={to.folder / 'guidellm.json'}", "--output", "kind=console"),
    ]


def _of_guidellm(report: Mapping[str, Any]) -> Result:
    [benchmark] = report["benchmarks"]
    metrics = benchmark["metrics"]

    def percentile(name: str, which: str) -> float:
        return float(metrics[name]["successful"]["percentiles"][which])

    totals = metrics["request_totals"]
    return Result(
        requests=totals["successful"],
        errors=totals["errored"] + totals["incomplete"],
        ttft_p50_ms=percentile("time_to_first_token_ms", "p50"),
        ttft_p95_ms=percentile("time_to_first_token_ms", "p95"),
        itl_p50_ms=percentile("inter_token_latency_ms", "p50"),
        latency_p50_ms=1e3 * percentile("request_latency", "p50"),
    )


def _inference_perf(to: Target) -> list[str]:
    def fixed(tokens: int) -> dict[str, int]:
        return {"min": tokens, "max": tokens, "mean": tokens, "std_dev": 0, "total_count": REQUESTS}

    config = {
        # It has random prompts for completions only.
        "api": {
            "type": "completion",
            "streaming": True,
            "headers": {"Authorization": f"Bearer {to.key}"},
        },
        "server": {"type": "vllm", "model_name": to.model, "base_url": to.url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(to.tokenizer)},
        "data": {
            "type": "random",
            "input_distribution": fixed(INPUT_TOKENS),
            "output_distribution": fixed(OUTPUT_TOKENS),
        },
        "load": {
            "type": "concurrent",
            "num_workers": 1,
            "stages": [{"num_requests": REQUESTS, "concurrency_level": CONCURRENCY}],
        },
        "storage": {"local_storage": {"path": str(to.folder)}},
    }
    file = to.folder / "load.json"  # YAML includes JSON
    file.write_text(json.dumps(config, indent=1))
    return ["--config_file", str(file)]


def _of_inference_perf(report: Mapping[str, Any]) -> Result:
    latency = report["successes"]["latency"]
    return Result(
        requests=report["successes"]["count"],
        errors=report["failures"]["count"],
        ttft_p50_ms=1e3 * latency["time_to_first_token"]["median"],
        ttft_p95_ms=1e3 * latency["time_to_first_token"]["p95"],
        itl_p50_ms=1e3 * latency["inter_token_latency"]["median"],
        latency_p50_ms=1e3 * latency["request_latency"]["median"],
    )


TOOLS: Final[Mapping[str, Tool]] = MappingProxyType(
    {
        "aiperf": Tool(
            title="AIPerf",
            program="aiperf",
            words=_aiperf,
            report="profile_export_aiperf.json",
            read=_of_aiperf,
        ),
        "guidellm": Tool(
            title="GuideLLM",
            program="guidellm",
            words=_guidellm,
            report="guidellm.json",
            read=_of_guidellm,
        ),
        "inference-perf": Tool(
            title="inference-perf",
            program="inference-perf",
            words=_inference_perf,
            report="summary_lifecycle_metrics.json",
            read=_of_inference_perf,
        ),
    }
)
