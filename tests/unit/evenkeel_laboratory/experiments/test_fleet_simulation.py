import gc
from collections.abc import Iterable
from random import Random

import pytest
from evenkeel_laboratory.experiments.fleet import Fleet, path_blocks
from evenkeel_laboratory.experiments.generators import TreeOfThoughts
from evenkeel_laboratory.experiments.setup import (
    Setup,
    SetupError,
    engine_config,
    find_profile,
    simulate,
)
from evenkeel_simulator.engine.cache import Segment
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.workload import Call, Client, Program, Workload

PROFILE = PROFILES["a10g-llama3.2-3b"]


def one_call(name: str, at_s: float, *, client: str = "c", size: int = 100) -> Program:
    call = Call(input_tokens=size, output_tokens=5, max_output_tokens=5)
    return Program(name, client, at_s, (call,))


def run(programs: Iterable[Program], **setup: object) -> dict[str, Record]:
    records, _ = simulate(
        Setup(profile=PROFILE, **setup),  # type: ignore[arg-type]
        Workload("test", list(programs)),
    )
    return {record.id: record for record in records}


@pytest.mark.parametrize(
    ("fleet", "want"),
    [
        ("RoundRobin", [0, 1, 0, 1]),
        # Each client starts one replica further on.
        ("PerClientRoundRobin", [0, 1, 1, 0]),
        ("LeastLoaded", [0, 1, 0, 1]),
    ],
)
def test_the_fleet_policy_chooses_the_replica(fleet: str, want: list[int]) -> None:
    programs = [one_call(str(n), n / 1e3, client="ab"[n % 2]) for n in range(4)]
    records = run(programs, replicas=2, fleet_policy=fleet)
    assert [records[str(n)].replica for n in range(4)] == want


def test_children_start_when_their_last_parent_ended_and_extend_its_output() -> None:
    root = (Segment("root", 50),)
    parents = [
        Call(input_tokens=50, output_tokens=n, max_output_tokens=n, prompt=root, output_key=n)
        for n in (10, 30)
    ]
    prompt = (*root, parents[1].output, Segment("turn", 20))
    child = Call(
        input_tokens=100, output_tokens=5, max_output_tokens=5, prompt=prompt, after=(0, 1)
    )
    records = run([Program("p", "c", 1.0, (*parents, child))], replicas=2)
    assert records["p.2"].arrival_s == records["p.1"].finished_s
    assert records["p.2"].replica == records["p.1"].replica
    assert records["p.2"].cached_tokens == 80


def test_d2lpm_keeps_a_tree_where_its_prefix_is_and_round_robin_does_not() -> None:
    calls = TreeOfThoughts(branches=2).calls("p", "c", Random(0))
    programs = [Program("p", "c", 0.0, calls)]
    near = run(programs, replicas=4, worker_quantum=1e9)
    far = run(programs, replicas=4, fleet_policy="RoundRobin")
    assert len({record.replica for record in near.values()}) == 1
    assert len({record.replica for record in far.values()}) == 4
    assert sum(r.cached_tokens for r in near.values()) > sum(r.cached_tokens for r in far.values())


def test_what_arrives_at_one_instant_is_admitted_in_one_pass() -> None:
    records = run([one_call(str(n), 2.0) for n in range(3)])
    assert {record.admitted_s for record in records.values()} == {2.0}
    assert len({record.first_token_s for record in records.values()}) == 1


def test_a_request_that_fits_no_replica_is_refused_and_the_others_go_on() -> None:
    records = run([one_call("big", 0.0, size=10**6), one_call("small", 0.1)])
    assert (records["big"].status, records["big"].replica) == ("refused", -1)
    assert records["small"].status == "finished"


def test_an_arrival_out_of_order_is_refused() -> None:
    with pytest.raises(ValueError, match="program early arrives out of order"):
        run([one_call("late", 5.0), one_call("early", 1.0)])


def test_weights_reach_the_replicas() -> None:
    programs = [
        one_call(f"{client}{n}", 0.0, client=client, size=2000)
        for n in range(40)
        for client in "ab"
    ]
    clients = {"b": Client("b", "default/default", client_weight=4)}
    setup = Setup(profile=PROFILE, engine=engine_config(kv_tokens=4100), quantum=1000)
    records, _ = simulate(setup, Workload("w", programs, clients))
    first = [record.client for record in records[:40]]
    assert first.count("b") == pytest.approx(4 * first.count("a"), abs=4)


def test_an_evicted_prefix_leaves_the_index() -> None:
    fleet = Fleet(
        Setup(profile=PROFILE, engine=engine_config(kv_tokens=250)).fleet(), lambda record: None
    )
    prompts = [(Segment(name, 200),) for name in "ab"]
    programs = [
        Program(str(at), "c", float(at), (Call(200, 5, 5, prompt),))
        for at, prompt in enumerate(prompts)
    ]
    fleet.run(Workload("w", programs))
    held = [fleet.index.match(path_blocks(prompt), fleet._routable).blocks for prompt in prompts]
    assert held == [0, 1]


def test_a_run_makes_no_reference_cycles_and_leaves_the_collector_as_it_was() -> None:
    def unreachable_after(trees: int) -> int:
        rng = Random(0)
        programs = [
            Program(str(n), "ab"[n % 2], n / 4, TreeOfThoughts(branches=2).calls(str(n), "", rng))
            for n in range(trees)
        ]
        setup = Setup(profile=PROFILE, replicas=2, engine=engine_config(kv_tokens=9000))
        fleet = Fleet(setup.fleet(), lambda record: None)
        gc.collect()
        gc.disable()  # or one might happen between the run and the count
        try:
            fleet.run(Workload("w", programs))
            return gc.collect()
        finally:
            gc.enable()

    unreachable_after(1)  # what is made once only, such as at a library's first use
    assert unreachable_after(20) == unreachable_after(2)
    run([one_call("a", 0.0)])
    assert gc.isenabled()


def test_a_prefix_computed_again_while_a_request_waits_is_back_in_the_index() -> None:
    seen: list[Record] = []
    fleet = Fleet(Setup(profile=PROFILE, engine=engine_config(kv_tokens=450)).fleet(), seen.append)
    early, late = (Segment("a", 200),), (Segment("b", 200),)
    calls = [
        (0.0, Call(200, 5, 5, early)),
        (1.0, Call(200, 230, 230, late)),  # runs, and grows until the first prefix has to go
        (
            1.1,
            Call(200, 5, 200, early),
        ),  # routed by that prefix, but there is no room for its output
    ]
    programs = [Program(str(at_s), "c", at_s, (call,)) for at_s, call in calls]
    fleet.run(Workload("w", programs))
    assert [record.cached_tokens for record in seen] == [0, 0, 0]  # so it was evicted
    assert fleet.index.match(path_blocks(early), fleet._routable).blocks == 1


@pytest.mark.parametrize(
    ("change", "want"),
    [
        (
            {"replica_policy": "SJF"},
            "replica policy 'SJF' is not one of FCFS, LPM, HRRN, VTC, VTCPredict, LCF, DRR, DLPM",
        ),
        ({"fleet_policy": "x"}, "fleet policy 'x' is not one of RoundRobin"),
        ({"replicas": 0}, "replicas is 0, must be from 1 to 1024"),
        ({"replicas": 10**8}, "replicas is 100000000, must be from 1 to 1024"),
        ({"quantum": 0.0}, "quantum is 0.0"),
    ],
)
def test_a_faulty_setup_is_named(change: dict[str, object], want: str) -> None:
    with pytest.raises(SetupError, match=want):
        Setup(profile=PROFILE, **change).fleet()  # type: ignore[arg-type]


def test_policies_are_found_in_any_spelling() -> None:
    setup = Setup(profile=PROFILE, replica_policy="dlpm", fleet_policy="per-client-round-robin")
    assert setup.named().fleet_policy == "PerClientRoundRobin"
    assert setup.named().replica_policy == "DLPM"


def test_a_profile_or_admission_that_is_not_there_is_named(tmp_path: object) -> None:
    with pytest.raises(SetupError, match="profile 'h200' is neither one of a10g-llama2-7b"):
        find_profile("h200")
    with pytest.raises(SetupError, match="admission 'x' is not one of reservation"):
        engine_config(admission="x")
    with pytest.raises(SetupError, match="kv_tokens is 0"):
        engine_config(kv_tokens=0)


def test_a_slower_replica_takes_as_much_longer_and_gets_less() -> None:
    alone = [
        run([one_call("p", 0.0)], slowdowns=(factor,))["p"].latency_s or 0.0 for factor in (1, 4)
    ]
    assert alone[1] == pytest.approx(4 * alone[0])
    # Enough that requests wait at both, so both are measured.
    many = [one_call(str(n), n / 50, client=f"c{n % 3}", size=4000) for n in range(2000)]
    replicas = [one.replica for one in run(many, replicas=2, slowdowns=(1.0, 4.0)).values()]
    assert 0.15 < replicas.count(1) / len(replicas) < 0.3
