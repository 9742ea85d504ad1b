"""Decisions of the algorithms over drawn inputs: who is admitted, where requests go, whose prefill waits, and their measures."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from random import Random

from evenkeel_fairshare import bounds, client_verdict, tenancy, verdict
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.fleet import registry as fleets
from evenkeel_fairshare.fleet.contract import NOTHING, Dispatch, Usage, replica_set
from evenkeel_fairshare.measures import jain_index, percentile
from evenkeel_fairshare.qoe import AnswerTimeline, Expectation, qoe
from evenkeel_fairshare.replica import registry as replicas
from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.engine_time import EngineTime, PassTurns
from evenkeel_fairshare.replica.order import LONGEST_MATCH, MATCH_OCTAVES
from evenkeel_fairshare.saturation import Saturation
from evenkeel_fairshare.window import Taken, WindowShares

from tests.support.abstract_engine import AbstractEngine, Job
from tests.support.decisions import row, text
from tests.support.engine_figures import figures


def _job(rng: Random, n: int) -> Job:
    tenant = rng.choice("ab")
    client = rng.choice("xyz")
    tokens = rng.choice((10, 60, 2000))
    return Job(
        id=str(n),
        client=f"ns/{tenant}/{client}",
        tenant=f"ns/{tenant}",
        arrival_s=float(n),
        input_tokens=tokens,
        max_output_tokens=rng.choice((8, 30)),
        true_output_tokens=rng.choice((1, 5, 8)),
        client_weight={"x": 1.0, "y": 1.0, "z": 3.0}[client],
        tenant_weight={"a": 1.0, "b": 2.0}[tenant],
        prefix=rng.choice("pqrstu"),
        prefix_tokens=tokens // rng.choice((1, 2, 3)),
    )


def _run(policy: str, rng: Random) -> str:
    """One engine with requests that come, end, are aborted and are put back."""
    config = replicas.ReplicaPolicyConfig(
        cost=LinearCost(kv_time=rng.choice((0.0, 1.5))),
        deficits=DeficitRules(quantum=rng.choice((40, 300, 2000))),
        skip_misfit=rng.choice((True, False)),
        warmup_s=rng.choice((0.0, 5.0)),
        order=rng.choice((LONGEST_MATCH, MATCH_OCTAVES)),
    )
    engine = AbstractEngine(
        replicas.make_policy(policy, config), memory_tokens=rng.choice((2100, 4200))
    )
    steps, numbers = [], count()
    for n in range(60):
        for _ in range(rng.choice((0, 0, 1, 4))):
            engine.submit(_job(rng, next(numbers)))
        if engine.queue and not rng.randrange(10):
            engine.abort(rng.choice(engine.queue))
        if engine.batch and not rng.randrange(10):
            (engine.retract if rng.randrange(2) else engine.abort)(rng.choice(engine.batch))
        steps.append(",".join(job.id for job in engine.step()))
        if n == 40:
            engine.policy.served_elsewhere("ns/a/x", "ns/a", 150.0)
    deficits = {name: text(one) for name, one in engine.policy.clients().items()}
    return f"{policy} {len(engine.policy)} waiting: {' '.join(one or '.' for one in steps)} {text(deficits)}"


def admissions() -> Iterator[str]:
    """Which requests a policy admits, step by step, and its clients in the end."""
    for policy in replicas.POLICIES:
        for seed in range(10 if policy in ("DLPM", "DRR") else 4):
            yield f"{seed} {_run(policy, Random(seed))}"


def engine_time() -> Iterator[str]:
    """Whose prefill waits as engine time passes, with each client's lead and lag."""
    for seed in range(25):
        rng = Random(seed)
        time = EngineTime(isolation=rng.choice((0.0, 0.0, 1.5, 3.0)))
        waiting, prefilling, decoding, lines = [], [], [], []
        for n in range(30):
            action = rng.choice(
                ("open", "start", "start", "decode", "decode", "elapsed", "steps", "stop")
            )
            if action == "open":
                one = _job(rng, n)
                time.open(one)
                waiting.append(one)
            elif action == "start" and waiting:
                turns = PassTurns(time)
                turns.begin(chunk=prefilling[0] if prefilling and rng.randrange(2) else None)
                one = waiting[0]
                held = (
                    turns.must_wait(one),
                    time.must_wait(one),
                    time.should_wait(one),
                    time.lags(one),
                )
                lines.append(
                    "".join("01"[flag] for flag in held) + ("r" if turns.must_repeat([]) else "")
                )
                if not held[0]:
                    time.starts(waiting.pop(0))
                    prefilling.append(one)
            elif action == "decode" and prefilling:
                one = prefilling.pop(0)
                one.output_tokens = 1
                time.decodes(one)
                decoding.append(one)
            elif action == "elapsed":
                parts = {one: rng.choice((50, one.input_tokens)) for one in prefilling}
                time.elapsed(rng.choice((0.01, 0.3, 2.5)), prefilled=parts, decoded=bool(decoding))
            elif action == "steps" and decoding:
                time.decoded([rng.choice((0.02, 0.05)) for _ in range(3)])
            elif action == "stop" and decoding:
                one = decoding.pop(rng.randrange(len(decoding)))
                time.stops(one)
                time.close(one)
            lines.append(
                f"{len(time.lagging().all)}{'y' if time.all_yield() else ''}"
                if action == "elapsed"
                else action[0]
            )
        yield f"{seed}: {' '.join(lines)} {text(figures(time))}"


def selections() -> Iterator[str]:
    """Where a fleet policy sends requests while replicas come and go, and what is left of credits."""
    for policy in fleets.POLICIES:
        for quantum in (None, 500.0) if policy == "D2LPM" else (None,):
            for seed in range(6):
                rng = Random(seed)
                config = fleets.FleetPolicyConfig(worker_quantum=quantum, max_clients=3)
                made = fleets.make_policy(policy, config)
                live, sent, chosen = [0, 1, 2], [], []
                for slot in live:
                    made.joined(slot)
                for _ in range(60):
                    load = [rng.choice((0, 1, 2)) for _ in range(6)]
                    one = Dispatch(
                        client=rng.choice("wxyz"),
                        input_tokens=rng.choice((1, 100, 900)),
                        weight=rng.choice((1.0, 2.0)),
                        longest=replica_set(rng.sample(live, rng.randrange(len(live) + 1))),
                        matched_tokens=rng.choice((0, 50, 800)),
                    )
                    slot = made.select(
                        one, replica_set(rng.sample(live, rng.randrange(1, len(live) + 1))), load
                    )
                    chosen.append(str(slot))
                    if slot is not None:
                        made.dispatched(one, slot)
                        sent.append((one, slot))
                    if sent and rng.randrange(2):
                        usage = rng.choice(
                            (None, NOTHING, Usage(one.input_tokens, 0, 40), Usage(90, 80, 300))
                        )
                        made.finished(*sent.pop(rng.randrange(len(sent))), usage)
                    if not rng.randrange(15) and len(live) > 1:
                        made.left(live.pop(rng.randrange(len(live))))
                    if not rng.randrange(15) and (free := {*range(6)} - {*live}):
                        live.append(min(free))
                        made.joined(live[-1])
                credits = {client: dict(sorted(made.credit(client).items())) for client in "wxyz"}
                yield f"{policy} {text(quantum)} {seed}: {''.join(chosen)} {text(credits)}"


def measures() -> Iterator[str]:
    """Quality of experience, saturation, shares, bounds, percentiles and sentences."""
    for seed in range(30):
        rng = Random(seed)
        expectation = Expectation(
            ttft_s=rng.choice((0.0, 1.0)), tokens_per_s=rng.choice((2.0, 4.8))
        )
        timeline, made, now_s = AnswerTimeline(10.0, expectation), [], 10.0
        for _ in range(rng.choice((1, 4, 9))):
            now_s += rng.choice((0.0, 0.1, 2.0))
            timeline.add(1, now_s)
            made.append(now_s)
        answers = [
            qoe(made, arrival_s=10.0, expectation=expectation),
            timeline.qoe(),
            timeline.next_s(now_s),
            *(timeline.if_waiting(now_s + s) for s in (0.0, 1.0, 30.0)),
            *(
                timeline.if_served(now_s, speed, now_s + s)
                for speed in (1.0, 9.0)
                for s in (0.5, 20.0)
            ),
        ]
        yield row({"made": made, "expected": expectation}, answers)
    for seed in range(20):
        rng = Random(seed)
        saturation, now_s, served = Saturation(), 0.0, {"r": 0.0, "s": 0.0}
        for _ in range(20):
            now_s += rng.choice((0.5, 1.0, 5.0))
            name = rng.choice("rs")
            served[name] = max(0.0, served[name] + rng.choice((0.0, 100.0, -50.0)))
            saturation.observe(
                name, service=served[name], waits=bool(rng.randrange(5)), now_s=now_s
            )
            if not rng.randrange(12):
                saturation.retain("r")
        yield f"saturation {seed} => {text((saturation.seconds, saturation.service))}"
    weights = {"ns/a": 2.0, "ns/b": 1.0, "ns/a/x": 3.0, "ns/a/y": 1.0, "ns/b/x": 1.0, "ns/b/z": 0.5}
    clients = [name for name in weights if name.count("/") == 2]
    for seed in range(25):
        rng = Random(seed)
        chosen = rng.sample(clients, rng.randrange(1, 5))
        most = {name: rng.choice((0.0, 1.0, 5.0, float("inf"))) for name in chosen}
        weight = weights.__getitem__
        yield row(
            {"most": most},
            (tenancy.shares(chosen, weight, weight), tenancy.divided(9.0, most, weight, weight)),
        )
        scale = rng.choice((1.0, 1.0, 1e200, 1e-200))
        values = [scale * rng.choice((0.0, 1.0, 7.5)) for _ in range(rng.randrange(1, 6))]
        yield row(
            {"values": values},
            [jain_index(values), *(percentile(values, p) for p in (0, 33, 50, 95, 100))],
        )
        given = dict(zip(chosen, (rng.choice((0.799, 0.8, 1.2)) for _ in chosen), strict=True))
        shares = WindowShares(given, {"z": Taken(0.6, 0.4)}, rng.choice((0.9, 1.0, 7.0)))
        yield row(
            given,
            [
                verdict.is_fair(given),
                shares.least,
                verdict.judge(verdict.RunRecord(shares=shares, answered=1)),
            ],
        )
        churn = bounds.Churn(
            overshoot=bounds.dlpm_overshoot(
                max_input_tokens=100,
                memory_tokens=rng.choice((1000, 5000)),
                kv_time=rng.choice((0.0, 2.0)),
            ),
            quantum=rng.choice((10.5, 300.0)),
            crash_loss=rng.choice((0.0, 7.0)),
            deferred_refills=rng.choice((0, 2)),
            replicas=rng.choice((1, 3)),
            unsettled=rng.choice((0, 2)),
        )
        pair = (rng.choice((1.0, 2.0)), rng.choice((1.0, 4.0)))
        yield row(
            {"churn": churn, "weights": pair},
            [
                bounds.position_range(churn, pair[0]),
                bounds.churn_gap(churn, pair),
                bounds.churn_gap_from_level(churn, pair),
            ],
        )
    for seed in range(30):
        rng = Random(seed)
        given_over_owed, share = rng.choice((None, 0.79, 0.8, 1.0)), rng.choice((0.2, 0.5))
        facts = {
            "waiting": int(not rng.randrange(3)),
            "active": bool(rng.randrange(4)),
            "received": rng.choice((None, 0.2, 0.21, 0.211, 0.525, 0.53)),
        }
        words = client_verdict.judge_client(
            client_verdict.ClientRecord(given_over_owed=given_over_owed, share=share, **facts)
        ).sentence
        yield row({"given": given_over_owed, "share": share, **facts}, words)
    yield from _verdicts()


def _verdicts() -> Iterator[str]:
    """Verdicts on drawn minutes and on their clients, at the bounds of the thresholds."""
    for seed in range(120):
        rng = Random(seed)
        waiting, running = rng.choice((0, 1, 23)), rng.choice((0, 0, 4))
        silence = verdict.NO_SILENCE
        if waiting and rng.randrange(2):
            seconds = rng.choice((5.0, 29.9, 30.0))
            silence = verdict.Silence(
                seconds=seconds,
                fleet_s=0.0 if running else seconds,
                replicas=rng.choice((("r0",), ("r0", "r1"), ())),
                waiting=rng.choice((1, waiting)),
                stopped=rng.choice((0, running)),
            )
        over = verdict.Silence(seconds=25.0, replicas=rng.choice((("r0",), ())))
        facts = {
            "answered": rng.choice((0, 198, 199)),
            "answered_beyond": rng.choice((0, 0, 198)),
            "failed": rng.choice((0, 0, 1, 2)),
            "given_up": rng.choice((0, 0, 1, 2)),
            "given_up_beyond": rng.choice((0, 0, 2, 50)),
            "left": rng.choice((0, 1, 9)),
            "waiting": waiting,
            "running": running,
            "oldest_s": rng.choice((1.9, 2.0, 30.0)) if waiting else 0.0,
            "silence": silence,
            "was_silent": rng.choice((verdict.NO_SILENCE, verdict.NO_SILENCE, over)),
        }
        found = verdict.judge(verdict.RunRecord(minute=True, replicas=2, routable=2, **facts))
        yield row({"minute": facts}, found)
        client = {
            "failed": facts["failed"],
            "given_up": facts["given_up"],
            "ended": rng.choice((4, 20)),
            "held": rng.choice((0, 0, 1)),
            "held_s": rng.choice((1.9, 2.0)),
            "hurts": not rng.randrange(3),
            "given_over_owed": rng.choice((None, 0.79, 1.84)),
            "silence": rng.choice((verdict.NO_SILENCE, silence)),
        }
        yield row(
            {"client": client},
            client_verdict.judge_client(client_verdict.ClientRecord(active=True, **client)),
        )


def work() -> Iterator[str]:
    """What of a request is computed and charged."""
    for seed in range(30):
        rng = Random(seed)
        one = Request(
            id="1",
            client="ns/a/x",
            tenant="ns/a",
            arrival_s=0.0,
            input_tokens=rng.choice((1, 100)),
            max_output_tokens=9,
            charge_input=bool(rng.randrange(2)),
            paid_output_tokens=rng.choice((0, 3)),
            matched_tokens=rng.choice((0, 60)),
        )
        one.output_tokens = rng.choice((0, 2, 5))
        facts = {
            "request": (
                one.input_tokens,
                one.charge_input,
                one.paid_output_tokens,
                one.matched_tokens,
                one.output_tokens,
            )
        }
        cost = LinearCost(kv_time=rng.choice((0.0, 3.0)))
        costs = [cost.input_cost(40), cost.output_cost(40, 2, 5)]
        yield row(
            facts,
            [one.input_work, one.uncached_tokens, *(one.due_tokens(n) for n in (0, 1, 4)), *costs],
        )


TABLES = {
    "fairshare-admissions": admissions,
    "fairshare-engine-time": engine_time,
    "fairshare-selections": selections,
    "fairshare-measures": measures,
    "fairshare-work": work,
}
