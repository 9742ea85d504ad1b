"""The fleet as the router sees it: slots, lives, loads, prefixes."""

import pytest
from evenkeel_fairshare.fleet.contract import EMPTY, NOTHING, ReplicaSet, Usage
from evenkeel_fairshare.fleet.d2lpm import D2lpm
from evenkeel_fairshare.fleet.least_loaded import LeastLoaded
from evenkeel_fairshare.prefix.index import PrefixIndex
from evenkeel_router.core import candidates
from evenkeel_router.core.candidates import Fleet, Member, Plan

TEXT = b"x" * 64


def fleet(replicas: int = 2) -> Fleet:
    made = Fleet(D2lpm(worker_quantum=1000.0), PrefixIndex(), block_bytes=16)
    for n in range(replicas):
        made.ready(made.add(f"r{n}"))
    return made


def plan(of: Fleet, text: bytes = TEXT, tokens: int = 10) -> Plan:
    return of.plan("ns/t/c", weight=1.0, text=text, input_tokens=tokens)


def member(of: Fleet, name: str) -> Member:
    found = of.member(name)
    assert found is not None
    return found


def test_a_prefix_is_matched_where_it_was_sent() -> None:
    of = fleet(3)
    ticket = of.select(plan(of), EMPTY)
    assert ticket is not None
    of.dispatched(ticket)
    again = plan(of, TEXT + b"tail" * 4)
    assert again.matched_blocks == 4
    assert again.dispatch.longest == 1 << ticket.slot
    assert again.dispatch.matched_tokens == 8  # 64 of 80 bytes of 10 tokens
    second = of.select(again, EMPTY)
    assert second is not None
    assert second.member is ticket.member
    of.finished(ticket, Usage(10, 0, 5))
    assert plan(of).matched_blocks == 4


def test_what_was_never_computed_is_taken_back() -> None:
    of = fleet(1)
    ticket = of.select(plan(of), EMPTY)
    assert ticket is not None
    of.dispatched(ticket)
    of.finished(ticket, NOTHING)
    assert plan(of).matched_blocks == 0


def test_selection_counts_what_is_outstanding_and_a_refusal_gives_it_back() -> None:
    of = fleet()
    ticket = of.select(plan(of), EMPTY)
    assert ticket is not None
    assert of.outstanding == [1, 0]
    of.refused(ticket)
    assert of.outstanding == [0, 0]
    assert of.policy.credit("ns/t/c")[0] > 0  # nothing was charged


def test_tried_and_unready_replicas_are_filtered_first() -> None:
    of = fleet(3)
    of.unready(member(of, "r1"))
    ticket = of.select(plan(of), ReplicaSet(1))
    assert ticket is not None
    assert ticket.member.name == "r2"
    assert of.select(plan(of), ReplicaSet(0b101)) is None
    assert [m.routable for m in of] == [True, False, True]


def test_a_lost_replica_forgets_its_cache_and_a_draining_one_does_not() -> None:
    for lose in (False, True):
        of = fleet(1)
        ticket = of.select(plan(of), EMPTY)
        assert ticket is not None
        of.dispatched(ticket)
        of.finished(ticket, Usage(10))
        (of.lost if lose else of.unready)(ticket.member)
        assert of.select(plan(of), EMPTY) is None
        of.ready(ticket.member)
        assert plan(of).matched_blocks == (0 if lose else 4)


def test_what_ran_on_a_lost_process_does_not_touch_the_next_one() -> None:
    of = fleet(1)
    old = of.select(plan(of), EMPTY)
    assert old is not None
    of.lost(old.member)
    of.lost(old.member)  # news may come twice
    of.ready(old.member)
    assert of.load(old.member) == 0
    new = of.select(plan(of), EMPTY)
    assert new is not None
    assert new.slot != old.slot
    of.dispatched(old)
    of.refused(old)
    of.finished(old, NOTHING)
    assert of.load(old.member) == 1
    assert plan(of).matched_blocks == 0
    of.lost(old.member)
    assert of.load(old.member) == 0


def test_why_nothing_is_routable_is_said_in_numbers() -> None:
    of = fleet(0)
    assert of.why_unroutable() == "no replica is configured"
    for n in range(4):
        of.ready(of.add(f"r{n}"))
        of.unready(member(of, f"r{n}"))
    of.lost(member(of, "r0"))
    member(of, "r1").withheld = "terminating"
    assert of.why_unroutable() == "of 4 replicas 1 not there, 1 to get nothing new, 2 not ready"


def test_slots_are_used_again_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "SPARE_SLOTS", 1)
    of = fleet(2)
    slots = []
    for _ in range(6):
        of.lost(member(of, "r0"))
        of.ready(member(of, "r0"))
        slots.append(member(of, "r0").slot)
    assert slots == [2, 0, 2, 0, 2, 0]  # never the one that was just left, never r1's
    of.remove(member(of, "r1"))
    assert of.member("r1") is None
    assert member(of, "r0").lives == 7


def test_a_policy_that_does_not_match_prefixes_costs_no_hashing() -> None:
    of = Fleet(LeastLoaded(), PrefixIndex(), block_bytes=16)
    of.ready(of.add("r0"))
    made = plan(of)
    assert made.dispatch.blocks == ()
    ticket = of.select(made, EMPTY)
    assert ticket is not None
    of.dispatched(ticket)
    of.finished(ticket, NOTHING)
    assert len(of.index) == 0


def test_a_changed_policy_starts_from_zero_with_those_that_are_there() -> None:
    of = fleet(2)
    of.add("r2")  # never joined
    of.replace_policy(D2lpm())
    ticket = of.select(plan(of), EMPTY)
    assert ticket is not None
    of.replace_index(PrefixIndex(), block_bytes=32)
    assert len(plan(of).dispatch.blocks) == 2


def test_a_policy_that_chooses_nobody_is_a_fault() -> None:
    class Odd(LeastLoaded):
        def select(self, request: object, routable: object, outstanding: object) -> int | None:
            return None

    of = Fleet(Odd(), PrefixIndex(), block_bytes=16)
    of.ready(of.add("r0"))
    with pytest.raises(RuntimeError, match="LeastLoaded"):
        of.select(plan(of), EMPTY)
