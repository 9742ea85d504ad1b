"""GuideLLM and AIPerf: benchmarks with a load of their own. What they measured must be what they asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from importlib.resources import files
from pathlib import Path
from typing import Any

from flows import SIMULATED, TOKENS, URL, Access, flows_to_run, report
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

BIN = Path(sys.executable).parent
# Litellm brings a tokenizer that others download.
TOKENIZERS = Path(str(files("litellm"))) / "litellm_core_utils" / "tokenizers"
REQUESTS = 6
OWN_LOAD = "it sends its own load and has no such flow"
LIMIT_S = 300
ACCESS = Access()


def guidellm(folder: Path, streams: bool, key: str) -> dict[str, Any]:
    _tokenizer(folder / "tokenizer")
    backend = {
        "kind": "openai_http",
        "target": URL,
        "model": ACCESS.model,
        "api_key": key,
        "stream": streams,
        "request_format": "/v1/chat/completions",
    }
    data = {"kind": "synthetic_text", "prompt_tokens": 60, "output_tokens": TOKENS}
    options = {
        "--backend": backend,
        "--profile": {"kind": "concurrent", "streams": 2},
        "--constraint": {"kind": "max_requests", "count": REQUESTS},
        "--data": data,
        "--tokenizer": {"kind": "huggingface_auto", "model": str(folder / "tokenizer")},
        "--output": {"kind": "json", "path": str(folder / "out.json")},
    }
    words = [word for name, value in options.items() for word in (name, json.dumps(value))]
    _run("guidellm", "run", *words, "--disable-console")
    [made] = json.loads((folder / "out.json").read_text())["benchmarks"]
    done = made["requests"]["successful"]
    return {
        "requests": len(done),
        "errors": len(made["requests"]["errored"]),
        "tokens": {one["output_tokens"] for one in done},
    }


def aiperf(folder: Path, streams: bool, key: str, endpoint: str) -> dict[str, Any]:
    # It reads no usage of a streamed response that max_output_tokens cut (`response.incomplete`).
    reads_usage = not (streams and endpoint == "responses")
    _run(
        "aiperf", "profile", "--model", ACCESS.model, "--url", URL, "--endpoint-type", endpoint,
        *(["--streaming"] if streams else []), "--api-key", key,
        *(["--use-server-token-count"] if reads_usage else []),
        "--tokenizer", "cl100k_base", "--isl", "60", "--osl", str(TOKENS),
        "--request-count", str(REQUESTS), "--concurrency", "2", "--ui", "none",
        "--artifact-dir", str(folder / "out"),
    )  # fmt: skip
    made = json.loads((folder / "out" / "profile_export_aiperf.json").read_text())
    tokens = made["output_sequence_length"]
    return {
        "requests": made["request_count"]["avg"],
        "errors": made.get("error_request_count", {}).get("avg", 0),
        "tokens": {tokens["min"], tokens["max"]} if reads_usage else {TOKENS},
    }


def _run(*words: str) -> None:
    done = subprocess.run(
        [str(BIN / words[0]), *words[1:]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=os.environ | {"TIKTOKEN_CACHE_DIR": str(TOKENIZERS)},
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"{words[0]}: {done.stdout[-3000:]}{done.stderr[-3000:]}")


def _tokenizer(folder: Path) -> None:
    """One token a byte: prompts of these programs are counted in tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({sign: number for number, sign in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(folder)


def main() -> None:
    for package, api, measure in (
        ("guidellm", "chat completions", guidellm),
        ("aiperf", "chat completions", lambda *given: aiperf(*given, "chat")),
        ("aiperf", "responses", lambda *given: aiperf(*given, "responses")),
        ("aiperf", "messages", lambda *given: aiperf(*given, "messages")),
    ):
        found: dict[str, tuple[bool, str]] = {}
        for flow, streams in (("whole", False), ("streamed", True)):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                try:
                    made = measure(folder, streams, ACCESS.key)
                    assert made["requests"] == REQUESTS and not made["errors"], made
                    found[flow] = True, ""
                    known = {TOKENS} if SIMULATED else set(range(1, TOKENS + 1))
                    right = made["tokens"] <= known and found.get("usage", (True,))[0]
                    found["usage"] = right, "" if right else str(made)
                except Exception:
                    found[flow] = False, traceback.format_exc(limit=-2)
        for flow in flows_to_run():
            passed, detail = found.get(flow, (None, OWN_LOAD))
            report(package, package, api, flow, passed=passed, detail=detail)


if __name__ == "__main__":
    main()
