"""The fleet as the router sees it: slots, lives, loads, prefixes."""

from collections import Counter

import pytest
from evenkeel_fairshare.fleet.contract import EMPTY, NOTHING, ReplicaSet, Usage
from evenkeel_fairshare.fleet.d2lpm import D2lpm
from evenkeel_fairshare.fleet.d2lpm_auto import AutoD2lpm
from evenkeel_fairshare.fleet.least_loaded import LeastLoaded
from evenkeel_fairshare.prefix.adapters import LOAD_TOKENS, AdapterPlaces
from evenkeel_fairshare.prefix.exact import ExactIndex
from evenkeel_fairshare.prefix.index import PrefixIndex
from evenkeel_router.fleet import selection as candidates
from evenkeel_router.fleet.member import Member
from evenkeel_router.fleet.prediction import Basis, Pages, Prediction
from evenkeel_router.fleet.selection import Fleet, MatchedRequest
from msgspec.structs import replace

from tests.support.router_rooms import admitted, client, held, joins, reports, rooms_of

TEXT = b"x" * 64


def fleet(replicas: int = 2) -> Fleet:
    made = Fleet(D2lpm(worker_quantum=1000.0), PrefixIndex(), block_bytes=16)
    for n in range(replicas):
        made.ready(made.add(f"r{n}"))
    return made


def plan(of: Fleet, text: bytes = TEXT, tokens: int = 10) -> MatchedRequest:
    return of.match("ns/t/c", weight=1.0, text=text, input_tokens=tokens)


def member(of: Fleet, name: str) -> Member:
    found = of.member(name)
    assert found is not None
    return found


def test_a_prefix_is_matched_where_it_was_sent() -> None:
    of = fleet(3)
    ticket = of.select(plan(of), EMPTY)
    assert ticket is not None
    again = plan(of, TEXT + b"tail" * 4)
    assert again.matched_blocks == 4
    assert again.dispatch.longest == 1 << ticket.slot
    assert again.dispatch.matched_tokens == 8  # 64 of 80 bytes of 10 tokens
    second = of.select(again, EMPTY)
    assert second is not None
    assert second.member is ticket.member
    of.finished(ticket, Usage(10, 0, 5))
    assert plan(of).matched_blocks == 4


def test_a_replica_that_has_the_adapter_loaded_is_nearer() -> None:
    made = Fleet(AutoD2lpm(), PrefixIndex(), block_bytes=16, adapters_per_batch=2)
    for n in range(3):
        made.ready(made.add(f"r{n}"))
    places: dict[str, set[str]] = {}
    for n in range(30):
        adapter = f"a{n % 3}"
        text = f"{adapter} {n}".encode() * 8  # no prompt shares a block with another
        match = made.match("ns/t/c", weight=1.0, text=text, input_tokens=10, adapter=adapter)
        ticket = made.select(match, EMPTY)
        assert ticket is not None
        places.setdefault(adapter, set()).add(ticket.member.name)
    assert sorted(places.values(), key=str) == [{"r0"}, {"r1"}, {"r2"}]

    def nearest(adapter: str) -> ReplicaSet:
        match = made.match("ns/t/c", weight=1.0, text=b"", input_tokens=10, adapter=adapter)
        return match.dispatch.longest

    gone = member(made, next(iter(places["a1"])))
    assert nearest("a1") == 1 << (gone.slot or 0)
    made.lost(gone)
    assert nearest("a1") == EMPTY


def test_of_the_longest_matches_the_replica_with_the_adapter_is_nearer() -> None:
    places = AdapterPlaces(1)
    places.sent("a", 0)
    places.sent("a", 1)
    places.sent("b", 1)  # one slot: it replaces the other
    both, second = ReplicaSet(0b11), ReplicaSet(0b10)
    assert places.nearest("a", both, both) == (0b01, LOAD_TOKENS)
    assert places.nearest("a", second, both) == (0b10, 0)  # its cached prefix weighs more
    assert places.nearest("b", EMPTY, both) == (0b10, LOAD_TOKENS)
    assert places.nearest("b", EMPTY, ReplicaSet(0b01)) == (EMPTY, 0)
    assert places.nearest(None, both, both) == (both, 0)


@pytest.mark.parametrize(
    ("usage", "cached"),
    [(NOTHING, 0), (None, 0), (Usage(10, 0, 0), 4)],  # None: it may not have been computed
)
def test_what_may_not_have_been_computed_is_not_counted_as_cached(
    usage: Usage | None, cached: int
) -> None:
    of = fleet(1)
    ticket = of.select(plan(of), EMPTY)
    assert ticket is not None
    of.finished(ticket, usage)
    assert plan(of).matched_blocks == cached


def test_selection_counts_what_is_outstanding_and_a_refusal_gives_it_back() -> None:
    of = fleet()
    ticket = of.select(plan(of), EMPTY)
    assert ticket is not None
    assert of.outstanding == [1, 0]
    of.finished(ticket, NOTHING)
    assert of.outstanding == [0, 0]
    assert of.policy.credit("ns/t/c")[0] > 0  # nothing was charged


def test_requests_that_are_still_connecting_are_seen() -> None:
    """Forty at once, before the first has a connection: as many to each replica, and one document to one replica."""
    of = Fleet(AutoD2lpm(), PrefixIndex(), block_bytes=16)
    for n in range(2):
        of.ready(of.add(f"r{n}"))
    for n in range(40):
        assert of.select(plan(of, f"{n} ".encode() * 400, tokens=400), EMPTY) is not None
    assert of.outstanding == [20, 20]
    document = [of.select(plan(of, b"document" * 50, tokens=400), EMPTY) for _ in range(4)]
    assert len({ticket.member.name for ticket in document if ticket is not None}) == 1


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
    of.finished(old, NOTHING)
    assert of.load(old.member) == 1
    assert plan(of).matched_blocks == 4  # by the request that is there now
    of.lost(old.member)
    assert of.load(old.member) == 0


def test_a_process_that_is_lost_takes_its_adapters_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its slot is used again, by a process that has none."""
    monkeypatch.setattr(candidates, "SPARE_SLOTS", 0)
    of = Fleet(AutoD2lpm(), PrefixIndex(), block_bytes=16)
    of.ready(of.add("r0"))
    match = of.match("ns/t/c", weight=1.0, text=b"", input_tokens=10, adapter="a")
    ticket = of.select(match, EMPTY)
    assert ticket is not None
    of.lost(ticket.member)
    of.ready(ticket.member)
    assert ticket.member.slot == ticket.slot
    assert not of.alive(ticket), "it is of the life before"
    of.finished(ticket, NOTHING)
    assert of.load(ticket.member) == 0
    again = of.match("ns/t/c", weight=1.0, text=b"", input_tokens=10, adapter="a")
    assert again.dispatch.longest == EMPTY


def test_why_nothing_is_routable_is_said_in_numbers() -> None:
    of = fleet(0)
    assert of.why_unroutable() == "the service has no replicas"
    for n in range(4):
        of.ready(of.add(f"r{n}"))
        of.unready(member(of, f"r{n}"))
    of.lost(member(of, "r0"))
    member(of, "r1").unschedulable = "terminating"
    assert (
        of.why_unroutable()
        == "0 of 4 replicas can take requests: 1 unreachable, 1 unschedulable, 2 not ready"
    )


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
    of.finished(ticket, NOTHING)
    assert len(of.index) == 0


def test_a_changed_policy_starts_from_zero_with_those_that_are_there() -> None:
    of = fleet(2)
    of.add("r2")  # never joined
    of.replace_policy(D2lpm(worker_quantum=1000.0))
    ticket = of.select(plan(of), EMPTY)
    assert ticket is not None
    of.replace_index(PrefixIndex(), block_bytes=32)
    assert len(plan(of).dispatch.blocks) == 2


def test_a_policy_that_chooses_no_replica_is_a_fault() -> None:
    class Odd(LeastLoaded):
        def select(self, request: object, routable: object, outstanding: object) -> int | None:
            return None

    of = Fleet(Odd(), PrefixIndex(), block_bytes=16)
    of.ready(of.add("r0"))
    with pytest.raises(RuntimeError, match="LeastLoaded"):
        of.select(plan(of), EMPTY)


PAGES = Pages(hashes=(11, 12, 13, 14), page_tokens=16, tokens=64)


def tokens_plan(of: Fleet, pages: Pages = PAGES) -> MatchedRequest:
    return of.match("ns/t/c", weight=1.0, text=TEXT, input_tokens=pages.tokens, pages=pages)


def test_a_prompt_with_pages_is_matched_by_them_and_never_to_its_last_token() -> None:
    of = fleet()
    of.replace_index(ExactIndex(), block_bytes=16)
    ticket = of.select(tokens_plan(of), EMPTY)
    assert ticket is not None
    assert ticket.prediction == Prediction(Basis.ESTIMATED, 0)
    again = tokens_plan(of)
    assert again.matched_blocks == 4
    assert again.dispatch.matched_tokens == 48  # of 64 tokens the last is computed in any case
    longer = tokens_plan(of, PAGES._replace(tokens=70))
    assert longer.dispatch.matched_tokens == 64
    assert plan(of).matched_blocks == 0  # its text was never sent


def test_a_prediction_is_that_of_the_replica_chosen() -> None:
    of = fleet()
    index = ExactIndex()
    of.replace_index(index, block_bytes=16)
    index.stored([11, 12, 13], 0)
    index.stored([11], 1)
    index.set_synced(1, complete=True)
    longest = of.select(tokens_plan(of), EMPTY)
    assert longest is not None
    assert (longest.slot, longest.prediction) == (0, Prediction(Basis.ESTIMATED, 48))
    other = of.select(tokens_plan(of), ReplicaSet(1))
    assert other is not None
    assert (other.slot, other.prediction) == (1, Prediction(Basis.EXACT, 16))


def test_by_text_a_prediction_is_a_share_of_the_estimate() -> None:
    of = fleet()
    ticket = of.select(plan(of), EMPTY)
    assert ticket is not None
    of.finished(ticket, Usage(10, 0, 5))
    again = of.select(plan(of, TEXT + b"tail" * 4), EMPTY)
    assert again is not None
    assert again.prediction == Prediction(Basis.TEXT, 8)
    elsewhere = of.select(plan(of), ReplicaSet(1 << ticket.slot))
    assert elsewhere is not None
    assert elsewhere.prediction == Prediction(Basis.TEXT, 0)


def test_a_prompt_of_no_tokens_is_cached_nowhere() -> None:
    assert Pages((), 16, 0).cached(0) == 0


def test_what_another_replica_holds_of_a_prompt_is_found_on_demand() -> None:
    of = fleet(3)
    start, rest = b"start of a prompt", b"and the rest of it, which is longer"
    of.index.insert(plan(of, start).dispatch.blocks, 0)
    of.index.insert(plan(of, start + rest).dispatch.blocks, 1)
    dispatch = plan(of, start + rest, tokens=52).dispatch
    assert (dispatch.longest, dispatch.matched_tokens) == (0b10, 48)
    assert [dispatch.matched_at(slot) for slot in (0, 2)] == [16, 0]


def test_a_slow_replica_gets_fewer_requests_once_its_speed_is_known() -> None:
    """In the whole way from reports to the policy; a replica without requests that wait has no speed."""
    rooms = rooms_of()
    for name in ("r0", "r1", "r2"):
        joins(rooms, name)
    ledger, fairness = rooms.service_ledger.ledger, rooms.service_ledger.fairness
    for second in range(60):
        for name, speed, waiting in (("r0", 1000, 1), ("r1", 250, 1), ("r2", 10, 0)):
            incarnation = f"incarnation of {name}"
            rows = replace(held(client(), waiting=waiting), service=float(speed * second))
            reports(rooms, name, incarnation, rows, sequence=second + 1, since=second)
        for _ in fairness.steps(
            list(ledger.replica_accounts), rooms.service_ledger.weights, second
        ):
            pass
    rooms.replicas.take_speeds(rooms.service_ledger)
    tickets = [
        rooms.replicas.fleet.select(admitted(rooms, client()).match, EMPTY) for _ in range(90)
    ]
    counts = Counter(ticket.member.name for ticket in tickets if ticket is not None)
    assert counts["r0"] > 2 * counts["r1"]
    assert abs(counts["r0"] - counts["r2"]) <= 1
