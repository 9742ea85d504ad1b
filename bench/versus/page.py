"""The page of a head to head: every figure and every name of a winner comes from the raw data. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isinf
from typing import Final

from bench.versus import isolation
from bench.versus.contenders import CONTENDERS, EVENKEEL, GATE
from bench.versus.figures import LEAST_TTFT_S, MEASURES, Figures, Measure, figures
from bench.versus.raw import Facts, Trials
from bench.versus.workloads import CASES, HALF_LOAD, capacity

Found = Mapping[str, Mapping[str, Figures]]
"""Workload → contender → figures."""
OURS: Final = (EVENKEEL, GATE)
LATE_S: Final = LEAST_TTFT_S
"""Lateness of the senders' timers (p99) up to which the machine counts as fast enough: smaller differences do not count."""
_COLUMNS: Final = (
    *("", "share", "given / owed", "answered", "TTFT p50", "p95", "between tokens p50", "p95"),
    *("big team: TTFT p50", "p95", "tokens/s", "idle", "cached", "refused"),
)

_PAGE: Final = """\
# Head to head on the same simulated engines

LiteLLM's limiter, limits per key, a router that takes teams in turns, the orders of vLLM and SGLang, and Evenkeel: what a small team gets
beside a big one. `make versus` runs it in ten minutes on two cores, without a GPU, and writes this page.

`{command}` at commit {commit}, {date}; LiteLLM {litellm}; {cores} cores{nice}, load average {before:.1f} before and {after:.1f} after.
The senders' timers were at most {late:.0f} ms late (p99), so {busy}.

![TTFT, time between tokens, throughput and idle capacity of each contender under each workload](images/versus.png)

## Where another is better

{better}

{cases}

## What was compared

Each contender has two engines of its own: simulated replicas in real time (profile `a10g-llama2-7b`, 10,000 tokens of memory each). All
contenders run at the same time and get the same requests, so that other work on the machine meets all of them. Each workload is a new
run of {seconds:.0f} s with new processes. The first columns of the tables are those of the small team:

- share: its part of the service, computed input + 2 · output; input from the cache is not computed, so more of that makes it less;
- given / owed: in its worst minute, its service over its share while it waited; – where it did not wait for half of a minute;
- between tokens: the mean of a request.

The last four are those of both teams. Tokens/s are input and output of requests that ended. Idle is the part of the engines' time in
which one was empty although a request had waited for half a second. Refused are answers with status 429, which the verdict does not judge.

{contenders}

Clients that get 429 try again after 0.5 s, 1 s, 2 s and so on, up to 8 s, until the run ends; times count from the first try. A request
without an answer counts with the time until the end.

## Limits of this comparison

- LiteLLM is the program from the package index. Its documentation calls reservations by priority a feature of the paid version. The
  package has the code, and ran it without a licence. Without reservations its limiter limits the model, not a team.
- Rules that are rules only run in the sending process. They cost no hop, as LiteLLM's proxy and Evenkeel's router do.
- llm-d itself was not run. The rule of turns is ours after its page, without priorities; as in llm-d, turns have no weights.
- Limits need a capacity. Here it is the true one of each workload, by the simulator. An operator has to guess it, for a mix that changes.
- Limits count by the minute, and the runs have two whole minutes.
- Each figure is of one run of 130 s, without a spread. Where two differ by a tenth, a second run may turn them round.
- LiteLLM chooses an engine at random, which is its default. The others choose by cached prefix, which helps their hits and times.
- What a team is owed is its part of what both asked for while they waited, by weight. A small team that sends little is owed little: its
  share of all service can be 7 % while it is given all that it is owed. A team that never waited for half a minute has no such figure.
- All contenders have the same model of an engine, with the orders of vLLM and SGLang but not their other differences. Trust the order
  and the ratios of figures, not their size.
- We wrote the workloads: `bench/versus/workloads.py`. Change them, and run it again.

The raw data are in `versus/`: a row for each request, and one for each look at the engines. `python -m bench.versus --page` writes this
page from them again.
"""


def found_in(trials: Trials, seconds: float) -> Found:
    """All figures, contenders in the order of `CONTENDERS`."""
    return {
        case: {
            name: figures(CASES[case], trials[case][name].seen, trials[case][name].samples, seconds)
            for name in CONTENDERS
            if name in trials[case]
        }
        for case in CASES
        if case in trials
    }


def page(facts: Facts, found: Found) -> str:
    """The page."""
    late_s = max(facts.late_p99_s.values(), default=0.0)
    return _PAGE.format(
        command=facts.command,
        commit=facts.commit,
        date=facts.date,
        litellm=facts.litellm,
        cores=facts.cores,
        nice=f" at `nice {facts.nice}`" if facts.nice else "",
        before=facts.load_before,
        after=facts.load_after,
        late=late_s * 1e3,
        busy="it kept up" if late_s <= LATE_S else "**it was too busy**: run it again",
        better=_better(found),
        cases="\n\n".join(_case(case, own) for case, own in found.items()),
        seconds=facts.seconds,
        contenders="\n".join(f"- **{one.title}.** {one.about}" for one in CONTENDERS.values()),
    )


def _better(found: Found) -> str:
    """Every figure that a contender of others has better."""
    rows = [
        f"| {CASES[case].title} | {measure.words} | {' | '.join(cell or '–' for cell in cells)} |"
        for case, own in found.items()
        for measure in MEASURES
        if any(cells := [", ".join(better_than(ours, own, measure)) for ours in OURS])
    ]
    if not rows:
        return "In no figure of this run."
    head = (
        "These have a better figure than Evenkeel with its plug-in, or than its gate. Differences within a tenth do not count, "
        f"for tokens/s those within 3 %, and for TTFT those below {duration(LEAST_TTFT_S)}."
    )
    table = ["| workload | figure | than the plug-in | than the gate |", "|---|---|---|---|"]
    return "\n".join([head, "", *table, *rows])


def better_than(ours: str, own: Mapping[str, Figures], measure: Measure) -> list[str]:
    """Titles of the contenders of others that have a better figure than one of ours."""
    rivals = [name for name in own if name not in OURS and ours in own]
    return [CONTENDERS[name].title for name in rivals if measure.better(own[name], own[ours])]


def _case(case: str, own: Mapping[str, Figures]) -> str:
    most = capacity(case).tokens_per_min
    lines = [
        f"## {CASES[case].title.capitalize()}",
        "",
        f"{CASES[case].about} Capacity: {most:,.0f} tokens per minute.",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "|---|" + "---:|" * (len(_COLUMNS) - 1),
        *[_row(name, one) for name, one in own.items()],
        "",
        "The verdict, as `evenkeel replay` gives it:",
        "",
        *_verdicts(own),
    ]
    if case == HALF_LOAD and EVENKEEL in own:
        lines += ["", isolation.sentence()]
    return "\n".join(lines)


def _row(name: str, one: Figures) -> str:
    title = CONTENDERS[name].title
    cells = (
        f"**{title}**" if name in OURS else title,
        f"{one.share:.0%}",
        "–" if one.worst_minute is None else f"{one.worst_minute:.0%}",
        f"{one.answered:.0%}",
        duration(one.ttft_p50_s),
        duration(one.ttft_p95_s),
        duration(one.gap_p50_s),
        duration(one.gap_p95_s),
        duration(one.big_ttft_p50_s),
        duration(one.big_ttft_p95_s),
        f"{one.tokens_per_s:,.0f}",
        f"{one.idle:.0%}",
        f"{one.cached:.0%}",
        f"{one.refusals:,}",
    )
    return f"| {' | '.join(cells)} |"


def duration(value_s: float) -> str:
    """A time in s, below one second in ms; – for an infinite one."""
    if isinf(value_s):
        return "–"
    return f"{value_s:.1f} s" if value_s >= 0.9995 else f"{value_s * 1e3:.0f} ms"


def _verdicts(own: Mapping[str, Figures]) -> Iterator[str]:
    for name, one in own.items():
        failed = f" Requests that failed: {one.failures}." if one.failures else ""
        yield f"- {CONTENDERS[name].title}: {one.verdict}{failed}"
