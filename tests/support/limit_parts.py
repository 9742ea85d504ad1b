"""Parts of tenants' limits for tests."""

from __future__ import annotations

from evenkeel_router.ledger.limit_parts import LimitParts


def whole_limits(router: str = "r", now_s: float = 0.0) -> LimitParts:
    """The parts of a router that is alone: each is the whole limit."""
    parts = LimitParts(router)
    assert parts.end_census(parts.begin_census(), (), now_s)
    return parts


def census(author: LimitParts, *others: LimitParts, now_s: float = 0.0) -> bool:
    """A census in which all messages arrive."""
    ask = author.begin_census()
    return author.end_census(ask, [other.answer(ask, now_s) for other in others], now_s)


def exchange(asker: LimitParts, *others: LimitParts, now_s: float = 0.0) -> None:
    """One question to each of the others, at the same time."""
    ask = asker.ask(now_s)
    for answer in [other.answer(ask, now_s) for other in others]:
        asker.receive(answer, now_s)
