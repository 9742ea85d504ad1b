"""The page that compares Evenkeel with other systems, from `comparison.yaml`: each cell with its source and its date."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from docs.generate.pages import bullets, page, table

DATA: Final = Path(__file__).with_suffix(".yaml")
OWN: Final = "Evenkeel"
MISSING: Final = "not found"
_BETTER: Final = (
    "**Classes of service.** For interactive requests before batch jobs, whatever the shares are, use llm-d, Dynamo or SMG, or the priorities of vLLM and SGLang. Evenkeel has weights only.",
    "**Money.** For budgets and bills, use LiteLLM, agentgateway or Obleth. Evenkeel works [behind LiteLLM](../how-to/behind-litellm.md).",
    "**Very large models.** For separate prefill and decode or models over several nodes, use Dynamo, llm-d, Kthena, AIBrix or KServe, or the routers of vLLM, SGLang and TensorRT-LLM.",
    "**Many vendors.** To route among models of several providers, use LiteLLM, agentgateway, Envoy AI Gateway, Kthena, Models-as-a-Service or Obleth.",
    "**GPUs.** Evenkeel was not tested on a GPU ([limits](../how-to/sglang.md#limits)).",
    "**No plug-in.** Schedulers in front of an engine need nothing inside of it. So does Evenkeel's [gate](request.md#the-gate), but its order inside of an engine needs the plug-in.",
)
_DIFFERENT: Final = (
    "**Order inside of the engine.** A queue in front of the engines cannot order what already waits there. A short queue there costs throughput, and a long one costs fairness.",
    "**Computed tokens.** Round robin gives a client with long prompts more. Evenkeel charges what was computed, so cached tokens cost nothing. Dynamo does not count cached input either.",
    "**One share over the fleet.** Replicas and routers add to one ledger. A limit is not a share: a fixed one refuses work at idle times (LiteLLM's dynamic ones need not), and does not say who goes first.",
    "**Measured.** The p99 of a light client beside a flood in SGLang was 17 times the ideal with LPM, 6 times with FCFS and 1.4 times with DLPM ([forward passes](../../bench/results/sglang.md)).",
    "**Head to head.** LiteLLM's limiter, limits per key, turns by request and the engines' orders on the same simulated engines: [figures, and where another is better](../../bench/results/versus.md).",
)


def pages() -> Iterator[tuple[str, str]]:
    """Path and text of the page."""
    data = load()
    intro = (
        f"Evenkeel compared with LiteLLM, llm-d, Dynamo and {len(data['systems']) - 3} other systems that share LLM engines "
        f"among tenants, from their public documents. All sources were read on {data['read']}."
    )
    how = (
        f"Products change: open the source before you decide. *{MISSING.capitalize()}* means that the sources read do not mention it; the system may "
        "still have it. Of a page without a commit, an excerpt was read. Nothing here was measured by us, unless a link to a measurement says so."
    )
    yield (
        "explanation/comparison.md",
        page(
            "Compare Evenkeel with LiteLLM, llm-d, Dynamo and others",
            intro,
            how,
            "## Where others are better",
            bullets(_BETTER),
            "## What is different here",
            bullets(_DIFFERENT),
            *(_question(one, data) for one in data["questions"]),
        ),
    )


def load() -> Mapping[str, Any]:
    """The data; cells are lists of a text and the names of its sources."""
    data: dict[str, Any] = yaml.safe_load(DATA.read_text(encoding="utf-8"))
    return data


def address(source: Mapping[str, str]) -> str:
    """Where a source is: a page here or elsewhere, or a file at a commit."""
    if "repo" in source:
        return f"https://github.com/{source['repo']}/blob/{source['commit']}/{source['path']}"
    return source.get("url") or source["page"]


def _question(question: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    cells: Mapping[str, list[str]] = question["cells"]
    names = [name for name in (OWN, *data["systems"]) if name in cells]
    rows = [
        (name, cells[name][0], ", ".join(_link(one, data["sources"]) for one in cells[name][1:]))
        for name in names
    ]
    missing = ", ".join(name for name in data["systems"] if name not in cells)
    return "\n\n".join(
        (
            f"## {question['title']}",
            table(("system", "", "source"), rows),
            *((f"{MISSING.capitalize()}: {missing}.",) if missing else ()),
        )
    )


def _link(name: str, sources: Mapping[str, Mapping[str, str]]) -> str:
    return f"[{name}]({address(sources[name])})"
