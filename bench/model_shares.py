"""Tenants with several models of unequal size, in virtual time: do engine seconds over all models follow the weights (R22)?

    python -m bench.model_shares [--seconds 600] [--out bench/results]

Two models: `big` (profile a100-llama2-13b, a replica of four GPUs) and `small` (a100-llama3.1-8b, a replica of one). Each engine runs the policies
that ship. A tenant has 48 requests open at each model that it uses, of its own shape, and all weights are equal. Requests carry the weight of
their tenant in their model, as client keys do: the configured one (`None`), or that of `fairshare.across_services` (`Gateway`), renewed every
five seconds from what each model served, from what waits there, and from its speed as the router measures it.

A tenant's engine seconds at a model are its part of the weighted tokens there, times the GPUs, times the part of the time in which the engine
works. `fairest` is the best that any schedule can do (max-min).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from math import inf
from pathlib import Path
from typing import Final

import matplotlib
from evenkeel_fairshare.across_services import ServiceRates, weights_in_services
from evenkeel_fairshare.saturation import Saturation
from evenkeel_laboratory.experiments.setup import Setup, engine_config, find_profile
from evenkeel_simulator.engine.cache import Segment
from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.request import EngineRequest
from matplotlib import pyplot

OPEN: Final = 48
"""Open requests of a tenant at a model."""
BATCH: Final = 32
"""Requests that an engine runs at a time."""
TICK_S: Final = 1.0
INTERVAL_S: Final = 5.0
WARMUP_S: Final = 60.0
"""Figures leave out what happens before."""
SHAPES: Final = {"ads": (200, 300), "law": (2000, 100), "ops": (600, 200)}
"""Tenant → (input, output) tokens of its requests."""


@dataclass(frozen=True)
class Model:
    """One model with one replica."""

    profile: str
    gpus: int


MODELS: Final = {"big": Model("a100-llama2-13b", 4), "small": Model("a100-llama3.1-8b", 1)}
Uses = Mapping[str, Mapping[str, int]]
"""Tenant → model → open requests there."""
BIG: Final = {"big": OPEN}
SMALL: Final = {"small": OPEN}
BOTH: Final = {**BIG, **SMALL}
ONE_BY_ONE: Final[Uses] = {"ads": {"big": OPEN, "small": 1}, "law": SMALL}
"""Ads has its share at the big model, and sends one request after the other to the small one."""
CASES: Final[Mapping[str, tuple[Uses, Mapping[str, float]]]] = {
    "another tenant at the big one": (
        {"ads": BOTH, "law": BIG},
        {"ads": 2.5, "law": 2.5},
    ),
    "another tenant at the small one": (
        {"ads": BOTH, "law": SMALL},
        {"ads": 4.0, "law": 1.0},
    ),
    "another tenant at each": (
        {"ads": BOTH, "law": BIG, "ops": SMALL},
        {"ads": 2.0, "law": 2.0, "ops": 1.0},
    ),
    "both at both": ({"ads": BOTH, "law": BOTH}, {"ads": 2.5, "law": 2.5}),
    "one model each": ({"ads": BIG, "law": SMALL}, {"ads": 4.0, "law": 1.0}),
}
"""Name → (who floods what, engine seconds per second of each tenant at the fairest)."""


@dataclass
class Place:
    """One model's engine, and what its tenants sent."""

    name: str
    engine: Engine
    now_s: float = 0.0
    """Time of the engine; infinite while it has nothing to do."""
    busy_s: float = 0.0
    """Time in which the engine worked."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Tenant → weight here; 1 if it is missing."""
    saturation: Saturation = field(default_factory=Saturation)
    ended: list[tuple[float, str]] = field(default_factory=list)
    """(time, tenant) of each request that ended."""
    numbers: count[int] = field(default_factory=count)

    def busy_until(self, now_s: float) -> float:
        """Time in which it worked, without the part of the last step that comes later."""
        return self.busy_s - (self.now_s - now_s if self.now_s < inf else 0.0)

    def served(self) -> dict[str, float]:
        """Tenant → weighted tokens until now."""
        clients = self.engine.accounts.clients.items()
        return {client.split("/")[1]: totals.service for client, totals in clients}

    def waiting(self) -> dict[str, float]:
        """Tenant → weighted tokens that its waiting requests will cost."""
        found: dict[str, float] = {}
        for request in self.engine.waiting():
            tenant = request.tenant.rpartition("/")[2]
            cost = request.input_tokens + 2 * request.target_output_tokens
            found[tenant] = found.get(tenant, 0.0) + cost
        return found

    def send(self, tenant: str) -> None:
        """A request of a tenant comes."""
        number = next(self.numbers)
        tokens, output = SHAPES[tenant]
        request = EngineRequest(
            id=str(number),
            client=f"ns/{tenant}/c",
            tenant=f"ns/{tenant}",
            arrival_s=self.now_s,
            input_tokens=tokens,
            max_output_tokens=output,
            target_output_tokens=output,
            tenant_weight=self.weights.get(tenant, 1.0),
            prompt=(Segment((tenant, number), tokens),),
        )
        self.engine.submit(request, self.now_s)

    def run(self, until_s: float) -> None:
        """Run the engine. Each request that ends is followed by another one."""
        while self.now_s < until_s:
            step = self.engine.step(self.now_s, until_s)
            if step is None:
                self.now_s = inf
                return
            self.busy_s += step.end_s - step.start_s
            self.now_s = step.end_s
            for request in step.finished:
                tenant = request.tenant.rpartition("/")[2]
                self.ended.append((step.end_s, tenant))
                self.send(tenant)


def place(name: str) -> Place:
    """An empty engine with the policies that ship."""
    setup = Setup(
        profile=find_profile(MODELS[name].profile), engine=engine_config(max_running=BATCH)
    )
    fleet = setup.fleet()
    return Place(name, Engine(fleet.engine, fleet.replica_policy(), fleet.profile))


@dataclass(frozen=True)
class Moment:
    """What happened until a time."""

    at_s: float
    busy_s: Mapping[str, float]
    """Model → time in which its engine worked."""
    served: Mapping[str, Mapping[str, float]]
    """Model → tenant → weighted tokens."""


@dataclass
class Run:
    """What tenants got."""

    moments: list[Moment] = field(default_factory=list)
    """One per interval."""
    places: Mapping[str, Place] = field(default_factory=dict)

    def between_answers_s(self, model: str, tenant: str, from_s: float) -> float:
        """Mean seconds from one end of a request to the next."""
        ends = [at_s for at_s, of in self.places[model].ended if of == tenant and at_s >= from_s]
        return (ends[-1] - ends[0]) / (len(ends) - 1)

    def seconds(self, from_s: float, until_s: float) -> dict[str, float]:
        """Engine seconds per second of each tenant."""
        inside = [one for one in self.moments if from_s <= one.at_s <= until_s]
        before, after = inside[0], inside[-1]
        found: dict[str, float] = {}
        for model, totals in after.served.items():
            busy_s = after.busy_s[model] - before.busy_s[model]
            engine = MODELS[model].gpus * busy_s / (after.at_s - before.at_s)
            gained = {
                name: more - before.served[model].get(name, 0.0) for name, more in totals.items()
            }
            for name, own in gained.items():
                part = own / max(1e-9, sum(gained.values()))
                found[name] = found.get(name, 0.0) + engine * part
        return found


def simulate(uses: Uses, *, shared: bool, seconds: float, joins_s: Mapping[str, float]) -> Run:
    """Run the models. `joins_s`: when a tenant comes, if not at the beginning."""
    places = {name: place(name) for name in MODELS}
    run, now_s = Run(places=places), 0.0
    before: dict[str, dict[str, float]] = {name: {} for name in places}
    to_come = {tenant: joins_s.get(tenant, 0.0) for tenant in uses}
    while now_s < seconds:
        for tenant in [name for name, at_s in to_come.items() if at_s <= now_s]:
            del to_come[tenant]
            for model, number in uses[tenant].items():
                if places[model].now_s == inf:
                    places[model].now_s = now_s
                for _ in range(number):
                    places[model].send(tenant)
        now_s += TICK_S
        for one in places.values():
            one.run(now_s)
            total = sum(one.served().values())
            waits = any(one.waiting().values())
            one.saturation.observe("r0", service=total, waits=waits, now_s=now_s)
        if now_s % INTERVAL_S == 0:
            served = {name: one.served() for name, one in places.items()}
            busy_s = {name: one.busy_until(now_s) for name, one in places.items()}
            run.moments.append(Moment(now_s, busy_s, served))
            if shared:
                renew(places, before, served)
            before = served
    return run


def renew(
    places: Mapping[str, Place],
    before: Mapping[str, Mapping[str, float]],
    served: Mapping[str, Mapping[str, float]],
) -> None:
    """New weights in all models whose speed is known."""
    rates = {}
    for name, one in places.items():
        speed = one.saturation.speeds().get("r0")
        if speed is not None:
            rates[name] = ServiceRates(
                served={
                    tenant: (total - before[name].get(tenant, 0.0)) / INTERVAL_S
                    for tenant, total in served[name].items()
                },
                waiting=one.waiting(),
                token_cost_s=MODELS[name].gpus / speed,
            )
    found = weights_in_services(rates, lambda _: 1.0, interval_s=INTERVAL_S)
    for name, weights in found.items():
        places[name].weights = {tenant: max(0.001, own) for tenant, own in weights.items()}


def table(seconds: float) -> None:
    """Print the figures of all cases."""
    print("| who floods what | tenant | fairest | `None` | `Gateway` |\n|---|---|---|---|---|")
    for name, (uses, fairest) in CASES.items():
        runs = [
            simulate(uses, shared=shared, seconds=seconds, joins_s={}) for shared in (False, True)
        ]
        none, gateway = (run.seconds(WARMUP_S, inf) for run in runs)
        for tenant, owed in fairest.items():
            where = " and ".join(uses[tenant])
            print(
                f"| {name} | {tenant}: {where} | {owed:.2f} | {none[tenant]:.2f} | {gateway[tenant]:.2f} |"
            )
        most, *totals = (sum(one.values()) for one in (fairest, none, gateway))
        print(f"| | all | {most:.2f} | {totals[0]:.2f} | {totals[1]:.2f} |")
    for shared in (False, True):
        run = simulate(ONE_BY_ONE, shared=shared, seconds=seconds, joins_s={})
        between_s = run.between_answers_s("small", "ads", WARMUP_S)
        print(
            f"one request at a time at the small model, {shared=}: an answer every {between_s:.1f} s"
        )


def save(path: Path, seconds: float) -> None:
    """Plot a tenant that floods both models, and another one that comes to the big one after a third of the time."""
    matplotlib.use("Agg")
    uses, _ = CASES["another tenant at the big one"]
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.5), sharey=True)
    for shared, (title, axis) in enumerate(zip(("None", "Gateway"), axes, strict=True)):
        run = simulate(uses, shared=bool(shared), seconds=seconds, joins_s={"law": seconds / 3})
        times = [one.at_s for one in run.moments]
        for tenant, style in (("ads", "-"), ("law", "--")):
            points = [
                run.seconds(began, ended).get(tenant, 0.0)
                for began, ended in zip(times, times[2:], strict=False)
            ]
            axis.plot(
                times[1:-1], points, style, label=f"{tenant}: {' and '.join(uses[tenant])} model"
            )
        axis.set(title=f"shareAcross: {title}", xlabel="seconds", ylim=(0, 5.2))
    axes[0].set_ylabel("GPU seconds per second")
    axes[0].legend(loc="upper right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    table(args.seconds)
    if args.out:
        save(args.out / "images" / "model-shares.png", args.seconds)


if __name__ == "__main__":
    main()
