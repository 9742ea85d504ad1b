"""Talking to a replica policy by hand: requests in a line, passes as a list."""

from __future__ import annotations

from collections.abc import Mapping

from evenkeel_fairshare.replica.contract import AdmissionResult, ReplicaPolicy, Request
from evenkeel_fairshare.replica.order import Order


def request(
    id: str, client: str = "a", tenant: str = "t", *, extend: int = 100, matched: int = 0, **fields
) -> Request:
    """A request whose admission computes `extend` tokens, at a match of `matched`."""
    made = Request(
        id=id,
        client=client,
        tenant=tenant,
        arrival_s=0.0,
        input_tokens=matched + extend,
        max_output_tokens=100,
        **fields,
    )
    made.matched_tokens = matched
    made.extend_tokens = extend
    return made


SHORTEST_FIRST = Order(lambda request: request.uncached_tokens)
"""An order that is not near LPM's: no theorem depends on it."""


def arrive(policy: ReplicaPolicy, *requests: Request) -> None:
    for one in requests:
        policy.arrive(one, 0.0)


def admit(
    policy: ReplicaPolicy,
    room: int | None = None,
    misfits: tuple[str, ...] = (),
    later: tuple[str, ...] = (),
    held: tuple[str, ...] = (),
    answers: Mapping[str, AdmissionResult] = {},
) -> list[str]:
    """One pass; ids in order of admission. `room`: how many fit; `misfits`: ids that never do; `later`: those told so; `held`:
    clients that are told so once; `answers`: by id."""
    admitted: list[str] = []
    conversation = policy.admissions(0.0)
    proposed = next(conversation, None)
    while proposed is not None:
        fits = proposed.id not in misfits and (room is None or len(admitted) < room)
        outcome = AdmissionResult.ADMITTED if fits else AdmissionResult.NO_ROOM
        if proposed.id in later:
            outcome = AdmissionResult.LATER
        if proposed.client in held:
            outcome = AdmissionResult.CLIENT_LATER
        outcome = answers.get(proposed.id, outcome)
        if outcome is AdmissionResult.ADMITTED:
            admitted.append(proposed.id)
        try:
            proposed = conversation.send(outcome)
        except StopIteration:
            proposed = None
    return admitted


def decode(policy: ReplicaPolicy, one: Request, tokens: int) -> None:
    one.output_tokens += tokens
    policy.progress(one, tokens)


def deficit(policy: ReplicaPolicy, client: str) -> float:
    return policy.clients()[client].deficit
