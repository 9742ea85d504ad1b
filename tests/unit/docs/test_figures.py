"""Figures in the pages are those of the code: each line is a part of a page, with a constant in it."""

from __future__ import annotations

import gzip
import re
from typing import Final

import pytest
import yaml
from evenkeel_contract.adminstate import ACTIVATION_POLL_S
from evenkeel_fairshare.replica import deficit
from evenkeel_operator import autoscaler, reconcile
from evenkeel_operator.cluster import apply
from evenkeel_operator.core import recommendation, rotation
from evenkeel_operator.manifests import engine as engines
from evenkeel_plugin import matching
from evenkeel_router import services
from evenkeel_router.api.identity import MAX_CLIENTS
from evenkeel_router.fleet import health, suspicion
from evenkeel_router.ledger.service_ledger import SILENCE_S
from evenkeel_router.ledger.stores import redis
from evenkeel_router.ledger.totals import MAX_TENANTS
from evenkeel_router.prefix import tokenisation
from evenkeel_router.request import attempt, forward, pacing, relay
from evenkeel_router.settings import Timing
from evenkeel_router.slices import SLICE_S
from evenkeel_router.telemetry import slices, spans, tracing
from evenkeel_sglang import engine as sglang
from evenkeel_sglang import seams
from evenkeel_vllm import seams as vllm_seams

from tests.support.plain_words import ROOT

TIMING: Final = Timing()
HOW_TO, EXPLANATION = "how-to", "explanation"
FIGURES: Final = (
    (EXPLANATION, "bounds", f"2·W·(U + {deficit.DEFERRED_REFILLS + 1}·Q)"),
    (EXPLANATION, "failures", f"limited to {forward.EXCUSED_PER_ATTEMPT} times"),
    (EXPLANATION, "failures", f"at most {relay.MAX_OPENING_BYTES // 1024} KiB. A request"),
    (
        EXPLANATION,
        "failures",
        f"beside {['zero', 'one', 'two', 'three', 'four'][relay.REPEATS]} times the size",
    ),
    (EXPLANATION, "failures", f"a rest of {TIMING.first_rest_s:g} s"),
    (EXPLANATION, "failures", f"up to {suspicion.LONGEST_S:g} s. A probe's"),
    (EXPLANATION, "failures", f"until it has {attempt.PROBE_TOKENS} tokens"),
    (EXPLANATION, "failures", f"{suspicion.RETURNED} at a time: trusted"),
    (EXPLANATION, "failures", f"one of them for {TIMING.avoid_s:g} s"),
    (
        EXPLANATION,
        "failures",
        f"at least {TIMING.overdue_s:g} s. Before it has answered {health.KNOWN_TIMES}",
    ),
    (EXPLANATION, "failures", f"after {ACTIVATION_POLL_S:g} s in any case"),
    (EXPLANATION, "figures", f"The first {MAX_CLIENTS} clients"),
    (EXPLANATION, "figures", f"The first {MAX_TENANTS} tenants"),
    (EXPLANATION, "figures", f"in slices of {1e3 * SLICE_S:g} ms"),
    (EXPLANATION, "figures", f"At most {slices.MAX_SENDING} answers"),
    (EXPLANATION, "figures", f"not done after {slices.SEND_TIMEOUT_S:g} s"),
    (EXPLANATION, "ledger", f"waits up to {health.REPORT_PATIENCE_S:g} s"),
    (EXPLANATION, "ledger", f"return within {TIMING.return_s:g} s"),
    (EXPLANATION, "ledger", f"at most {services.FIRST_READING_S:g} s each"),
    (EXPLANATION, "ledger", f"after {attempt.NOTICE_S:g} s at most"),
    (EXPLANATION, "ledger", f"silence ({redis.ANSWER_TIMEOUT_S:g} s)"),
    (EXPLANATION, "ledger", f"did not change for {redis.GONE_AFTER_S:g} s"),
    (EXPLANATION, "operator", f"after {rotation.DRAIN_PATIENCE.seconds} s at most"),
    (EXPLANATION, "operator", f"opens after {rotation.GATE_PATIENCE.seconds} s"),
    (EXPLANATION, "operator", f"deadline ({engines.PROGRESS_DEADLINE_S // 60} minutes"),
    (EXPLANATION, "operator", f"retried after {apply.FIRST_RETRY_S:g} s"),
    (EXPLANATION, "operator", f"up to {apply.LAST_RETRY_S / 60:g} minutes"),
    (EXPLANATION, "operator", f"Every {reconcile.RESYNC_S / 60:g} minutes"),
    (EXPLANATION, "request", f"every {TIMING.gate_interval_s:g} s"),
    (EXPLANATION, "request", f"after {SILENCE_S:g} s of silence"),
    (EXPLANATION, "scaling", f"queries Prometheus every {autoscaler.INTERVAL_S:g} s"),
    (EXPLANATION, "scaling", f"within {recommendation.CATCH_UP_S:g} seconds what waits"),
    (EXPLANATION, "scaling", f"one long poll of {ACTIVATION_POLL_S:g} s"),
    (EXPLANATION, "sglang", f"makes at most {matching.MATCHES} further"),
    (EXPLANATION, "sglang", f"and {matching.MATCHES_SAVED} where"),
    (EXPLANATION, "sglang", f"pays {matching.LOAD_TOKENS} extend tokens"),
    (EXPLANATION, "sglang", f"({matching.SHARED_BLOCKS * matching.BLOCK_TOKENS} tokens or more)"),
    (EXPLANATION, "sglang", f"collections {sglang.WHEN_BUSY // 10} times less often"),
    (EXPLANATION, "tokens-mode", f"a prompt over {tokenisation.LONGEST_BYTES >> 20} MiB"),
    (EXPLANATION, "tokens-mode", f"over {tokenisation.WAITING_BYTES >> 20} MiB of prompts"),
    (HOW_TO, "pace-streams", f"up to {pacing.MAX_HELD_BYTES >> 10} KiB"),
    (HOW_TO, "traces", f"the first {spans.HASH_DIGITS} digits"),
    (HOW_TO, "traces", f"At most {spans.MAX_WAITING} spans wait"),
    (HOW_TO, "traces", f"lost after {spans.EXPORT_TIMEOUT_S:g} s"),
    (HOW_TO, "traces", f"for {tracing.LAST_EXPORT_S:g} s at most"),
    (
        HOW_TO,
        "weights-and-quanta",
        f"from {deficit.SMALLEST_QUANTUM:g} to {deficit.LARGEST_QUANTUM:g} weighted tokens",
    ),
)


@pytest.mark.parametrize(("folder", "page", "words"), FIGURES)
def test_a_figure_is_that_of_the_code(folder: str, page: str, words: str) -> None:
    assert words in " ".join((ROOT / f"docs/{folder}/{page}.md").read_text().split())


def test_the_console_is_as_small_as_its_page_says() -> None:
    said = re.search(r"under (\d+) kB with gzip", (ROOT / "docs/how-to/console.md").read_text())
    assert said is not None
    folder = ROOT / "router/evenkeel_router/page"
    assert sum(len(gzip.compress(one.read_bytes())) for one in folder.iterdir()) < 1000 * int(
        said[1]
    )


def test_the_proposal_to_the_engines_counts_the_places_that_the_plug_ins_use() -> None:
    text = (ROOT / "docs/design/engine-interface.md").read_text()
    called = (seams.BUDGET_STATE, seams.IN_FLIGHT)
    wrapped = len(set(seams.SEAMS) - set(called))
    assert (
        f"| {wrapped}, and {len(seams.OPTIONAL)} that it can do without | {len(vllm_seams.METHODS)} |"
        in text
    )
    assert f"functions that it calls | {len(called) + 1} | {len(vllm_seams.CALLED)} |" in text
    assert f"{wrapped} + {len(seams.OPTIONAL)} |" in text


def test_the_page_on_monitoring_lists_every_alert_once() -> None:
    listed = re.findall(
        r"^\| `(Evenkeel\w+)` \| [^|]+ \| [^|]+ \|$",
        (ROOT / "docs/how-to/monitoring.md").read_text().partition("**Error budget.**")[0],
        re.MULTILINE,
    )
    files = [yaml.safe_load(path.read_text()) for path in (ROOT / "monitoring/alerts").iterdir()]
    rules = {rule["alert"] for file in files for group in file["groups"] for rule in group["rules"]}
    assert sorted(listed) == sorted(rules)
