"""What Theorem 5.1 needs of the automatic worker quantum: a client with enough open work has work at every replica.

And what R2 asks for: no request waits behind work for longer than an idle replica takes for its prefix.
"""

from __future__ import annotations

from evenkeel_fairshare.fleet.contract import NOTHING, Dispatch, Usage, replica_set
from evenkeel_fairshare.fleet.d2lpm_auto import SPEED_BOUND, AutoD2lpm
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples

SLOTS = 4
CLIENTS = ("a", "b", "c")
LONGEST = 120
OUTPUT = 60
PATIENCE = 4.0
WORK = LONGEST + 2 * OUTPUT
"""The most work of one request."""

sends = st.tuples(
    st.sampled_from(CLIENTS),
    st.integers(1, LONGEST),
    st.floats(0, 1),  # the matched part
    st.sets(st.integers(0, SLOTS - 1)),
)
speeds = st.tuples(
    st.lists(st.sampled_from([0.0, 1.0, 50.0, 100.0, 120.0, 300.0, 1e9]), max_size=SLOTS)
)
ends = st.tuples(
    st.integers(0, 50),
    st.sampled_from([None, NOTHING, Usage(50, 0, 0), Usage(50, 0, OUTPUT)]),
)
Script = list[tuple]  # type: ignore[type-arg]


@examples(100)
@given(st.lists(st.one_of(sends, sends, sends, ends, speeds), max_size=150))
def test_work_of_a_client_does_not_pile_up_while_a_replica_has_none_of_it(
    script: Script,
) -> None:
    """At dispatch, with a replica that has none of its work, a client's work at the chosen one is bounded.

    near is chosen only if work(near) <= wait(near) <= wait(far) + PATIENCE * matched, and at a replica without
    its own work a client waits for at most one request's work of each other client. These are times: work at the slower of
    two replicas counts by the ratio of their speeds.
    """
    policy = AutoD2lpm(patience=PATIENCE)
    for slot in range(SLOTS):
        policy.joined(slot)
    running: list[tuple[Dispatch, int]] = []
    everywhere = replica_set(range(SLOTS))
    ratio = 1.0
    for step in script:
        if len(step) == 1:
            policy.measured(dict(enumerate(step[0])))
            ratio = SPEED_BOUND**2  # what was measured before stays in force for the other replicas
            continue
        if len(step) == 2:
            if running:
                request, slot = running.pop(step[0] % len(running))
                policy.finished(request, slot, step[1])
            continue
        client, tokens, part, held = step
        request = Dispatch(
            client,
            tokens,
            longest=replica_set(sorted(held)),
            matched_tokens=int(tokens * part) if held else 0,
        )
        chosen = policy.select(request, everywhere, [0] * SLOTS)
        assert chosen is not None
        own = [
            sum(each.client == client and at == slot for each, at in running)
            for slot in range(SLOTS)
        ]
        if 0 in own:
            # `input_tokens - matched_tokens` bounds the work of a request from below.
            open_input = sum(
                each.input_tokens - each.matched_tokens
                for each, at in running
                if each.client == client and at == chosen
            )
            assert open_input <= ratio * ((len(CLIENTS) - 1) * WORK + PATIENCE * LONGEST)
        policy.dispatched(request, chosen)
        running.append((request, chosen))


@examples(100)
@given(
    st.lists(st.tuples(st.sampled_from(CLIENTS), st.integers(1, LONGEST)), max_size=40),
    st.integers(1, LONGEST),
    st.integers(1, LONGEST),
)
def test_no_request_joins_a_queue_for_longer_than_an_idle_replica_needs(
    queue: list[tuple[str, int]], matched: int, rest: int
) -> None:
    """Replica 0 has the prefix and a queue, replica 1 nothing: R2 for a request at its dispatch."""
    policy = AutoD2lpm()
    for slot in (0, 1):
        policy.joined(slot)
    for client, tokens in queue:
        policy.dispatched(Dispatch(client, tokens), 0)
    request = Dispatch("a", matched + rest, longest=replica_set([0]), matched_tokens=matched)
    chosen = policy.select(request, replica_set([0, 1]), [len(queue), 0])
    own = sum(tokens for client, tokens in queue if client == "a")
    # DLPM serves each other client at most as much as this one gets there.
    wait = own + min(
        sum(tokens for client, tokens in queue if client != "a"),
        (own + rest) * len({client for client, _ in queue} - {"a"}),
    )
    assert chosen == (1 if wait > matched else 0)
