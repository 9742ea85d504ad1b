"""A chat template has a bounded part of a thread's time, whatever it does with it and whatever it is given."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from evenkeel_router.core.asked import Chat, read
from evenkeel_router.core.request import Endpoint
from evenkeel_router.core.tokenised import Reason, UntokenisedError
from evenkeel_router.edge.chattemplate import (
    LONGEST_S,
    PER_BYTE_S,
    SMALL_S,
    TOO_LONG,
    ChatTemplate,
)

HI = [{"role": "user", "content": "hi"}]
ENDLESS = {
    "ranges within ranges": "{% for a in range(99999) %}{% for b in range(99999) %}"
    "{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    "turns that do nothing": "{% for a in range(99999) %}{% for b in range(99999) if a < 0 %}"
    "{% endfor %}{% endfor %}",
    "a macro that calls itself twice": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}"
    "{% endif %}{% endmacro %}{{ m(60) }}",
    "a loop that calls itself": "{% for a in [60] recursive %}{% if a %}{{ loop([a - 1]) }}"
    "{{ loop([a - 1]) }}{% endif %}{% endfor %}",
    "a block that is called": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    "{% for a in range(99999) %}{% for b in range(99999) %}{% call m() %}{% endcall %}"
    "{% endfor %}{% endfor %}",
}


def chat(messages: list[dict[str, Any]] = HI, **fields: Any) -> Chat:
    found = read(Endpoint.CHAT, msgspec.json.encode({"messages": messages, **fields}))
    assert isinstance(found, Chat)
    return found


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "f"}}]])
def test_what_would_go_on_for_ages_is_given_up(
    source: str, tools: list[dict[str, Any]] | None
) -> None:
    with pytest.raises(UntokenisedError) as caught:
        ChatTemplate(source, {}).render(chat(tools=tools))
    assert (caught.value.reason, caught.value.detail) == (Reason.TEMPLATE, TOO_LONG)


def turns(asked: Chat, *, step_s: float) -> int:
    """How many turns a loop gets, each of which takes so long."""
    clock = itertools.count(0.0, step_s)
    reached: list[int] = []
    template = ChatTemplate(
        "{% for a in range(99999) %}{{ see(a) }}{% endfor %}",
        {"see": reached.append},  # type: ignore[dict-item]
        clock=lambda: next(clock),
    )
    with pytest.raises(UntokenisedError):
        template.render(asked)
    return len(reached)


def test_the_time_grows_with_the_request_up_to_an_end() -> None:
    small, large = chat(), chat([{"role": "user", "content": "x" * 20_000}])
    huge = chat([{"role": "user", "content": "x" * 2_000_000}])
    step_s = 1e-4
    for asked in (small, large, huge):
        allowed_s = min(LONGEST_S, SMALL_S + PER_BYTE_S * asked.size_bytes)
        assert turns(asked, step_s=step_s) == pytest.approx(allowed_s / step_s, abs=2)
    assert turns(huge, step_s=step_s) == pytest.approx(LONGEST_S / step_s, abs=2)


def test_no_request_can_give_itself_more() -> None:
    options = {"chat_template_kwargs": {"evenkeel_check": "none"}}
    with pytest.raises(UntokenisedError) as caught:
        ChatTemplate(ENDLESS["ranges within ranges"], {}).render(chat(**options))
    assert caught.value.detail == TOO_LONG


def test_looking_at_the_time_changes_no_text() -> None:
    source = (
        "{% macro say(m) %}<{{ m.role }}>{{ caller() }}{% endmacro %}"
        "{% for m in messages if m.role != 'system' %}{% call say(m) %}{{ m.content }}{% endcall %}"
        "{{ loop.index }}/{{ loop.length }}{{ '.' if loop.last else ',' }}{% else %}nobody{% endfor %}"
        "{% for a in [[1, [2]]] recursive %}({{ loop(a[1:]) if a is iterable else a }}){% endfor %}"
    )
    messages = [{"role": "system", "content": "s"}, *HI, {"role": "user", "content": "ho"}]
    assert ChatTemplate(source, {}).render(chat(messages)) == ("<user>hi1/2,<user>ho2/2.(())")
    assert ChatTemplate(source, {}).render(chat(messages[:1])).startswith("nobody")
