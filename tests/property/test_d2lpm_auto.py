"""What Theorem 5.1 needs of the automatic worker quantum: a client with enough open work has work at every replica."""

from __future__ import annotations

from evenkeel_fairshare.fleet.contract import NOTHING, Dispatch, Usage, replica_set
from evenkeel_fairshare.fleet.d2lpm_auto import AutoD2lpm
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
ends = st.tuples(
    st.integers(0, 50),
    st.sampled_from([None, NOTHING, Usage(50, 0, 0), Usage(50, 0, OUTPUT)]),
)
Script = list[tuple]  # type: ignore[type-arg]


@examples(100)
@given(st.lists(st.one_of(sends, sends, sends, ends), max_size=150))
def test_work_of_a_client_does_not_pile_up_while_a_replica_has_none_of_it(
    script: Script,
) -> None:
    """At dispatch, with a replica that has none of its work, a client's work at the chosen one is bounded.

    near is chosen only if work(near) <= wait(near) <= wait(far) + PATIENCE * matched, and at a replica without
    its own work a client waits for at most one request's work of each other client.
    """
    policy = AutoD2lpm(patience=PATIENCE)
    for slot in range(SLOTS):
        policy.joined(slot)
    running: list[tuple[Dispatch, int]] = []
    everywhere = replica_set(range(SLOTS))
    bound = (len(CLIENTS) - 1) * WORK + PATIENCE * LONGEST
    for step in script:
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
            assert open_input <= bound
        policy.dispatched(request, chosen)
        running.append((request, chosen))
