"""A chat template has a bounded part of a thread's time, whatever it does with it and whatever it is given."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.prefix.chat_template import (
    LONGEST_S,
    PER_BYTE_S,
    SMALL_S,
    TOO_LONG,
    TOO_MUCH,
    ChatTemplate,
)
from evenkeel_router.prefix.prompts import Chat, read
from evenkeel_router.prefix.tokenised import Reason, UntokenisedError

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


IMMENSE = {
    "a text times a number": "{{ 'x' * 1000000000 }}",
    "a number times a text": "{{ 1000000000 * 'x' }}",
    "a number that a request gives": "{{ 'x' * n }}",
    "a list times a number": "{{ ([1] * 1000000000)|length }}",
    "a power": "{{ (9 ** (9 ** 9)) % 10 }}",
    "powers by products": "{% set a = 2 ** 8000 %}{{ (a * a) % 10 }}",
    "a sum": "{% set a = 'x' * 4000000 %}{{ a + a }}",
    "a chain": "{% set a = 'x' * 4000000 %}{{ a ~ a }}",
    "twice as much in each line": "{% set a = 'xxxxxxxx' %}" + "{% set a = a ~ a %}" * 60,
    "twice as much in each set block": "{% set a = 'xxxxxxxx' %}"
    + "{% set a %}{{ a }}{{ a }}{% endset %}" * 60,
    "a format": "{{ '%1000000000d' % 1 }}",
    "a format whose width is given": "{{ '%*d' % (1000000000, 1) }}",
    "a format method": "{{ '{:1000000000}'.format('x') }}",
    "a format method whose width is given": "{{ '{:{}}'.format('x', n) }}",
    "a format of many fields": "{% set a = 'x' * 1000000 %}{{ '{0}{0}{0}{0}{0}{0}'.format(a) }}",
    "a width": "{{ 'x'.center(1000000000) }}",
    "a width on the left": "{{ 'x'.ljust(n) }}",
    "a width on the right": "{{ 'x'.rjust(n) }}",
    "zeros": "{{ '1'.zfill(n) }}",
    "tabs": "{{ '\t'.expandtabs(n) }}",
    "replacements": "{% set a = 'x' * 10000 %}{{ a.replace('x', a) }}",
    "what is put everywhere": "{% set a = 'x' * 10000 %}{{ a.replace('', a) }}",
    "a translation": "{% set a = 'x' * 10000 %}{{ a.translate({120: a}) }}",
    "a long separator": "{% set a = 'x' * 10000 %}{{ a.join(a) }}",
    "filter: a width": "{{ 'x'|center(1000000000) }}",
    "filter: an indent": "{{ 'x'|indent(n, true) }}",
    "filter: replacements": "{% set a = 'x' * 10000 %}{{ a|replace('x', a) }}",
    "filter: a format": "{{ '%1000000000d'|format(1) }}",
    "filter: a long separator": "{% set a = 'x' * 10000 %}{{ a|join(a) }}",
    "filter: a separator of attributes": "{% set a = 'x' * 1000000 %}"
    "{{ [{'k': a}, {'k': a}, {'k': a}, {'k': a}, {'k': a}]|join(attribute='k') }}",
    "filter: lines": "{% set a = 'x ' * 10000 %}{{ a|wordwrap(1, wrapstring=a) }}",
    "filter: batches": "{{ ([1]|batch(n, 0)|list)|length }}",
    "filter: slices": "{{ ([1]|slice(n)|list)|length }}",
    "filter: a precision": "{{ 1.5|round(n, 'ceil') }}",
    "filter: JSON": "{{ [1]|tojson(indent=n) }}",
    "all that is written": "{% set a = 'x' * 1000000 %}{{ a }}{{ a }}{{ a }}{{ a }}{{ a }}",
    "all that a macro writes": "{% set a = 'x' * 1000000 %}"
    "{% macro m() %}{{ a }}{{ a }}{{ a }}{{ a }}{{ a }}{% endmacro %}{{ m()|length }}",
}


@pytest.mark.parametrize("source", IMMENSE.values(), ids=IMMENSE)
def test_what_would_take_all_memory_is_given_up_before_it_is_made(source: str) -> None:
    asked = chat(chat_template_kwargs={"n": 10**9})
    with pytest.raises(UntokenisedError) as caught:
        ChatTemplate(source, {}, clock=lambda: 0.0).render(asked)
    assert (caught.value.reason, caught.value.detail) == (Reason.TEMPLATE, TOO_MUCH)


USUAL = {
    "{{ '=' * 8 ~ 'a' + 'b' }}": "========ab",
    "{{ ['a', 'b']|join(', ') }}{{ '-'.join(['c', 'd']) }}": "a, bc-d",
    "{{ messages|map(attribute='role')|join('|') }}": "user",
    "{{ [{'k': 1}, {'k': 2}]|join('-', attribute='k') }}": "1-2",
    "{{ '%s is %d' % ('x', 3) }} {{ '{} {:>4}'.format('y', 5) }}": "x is 3 y    5",
    "{{ 'a b'.replace(' ', '_') }}{{ 'c d'|replace(' ', '') }}": "a_bcd",
    "{{ 'a\nb'|indent(2) }}": "a\n  b",
    "{{ 'x'.ljust(3) }}{{ 'x'|center(3) }}{{ '7'.zfill(2) }}|": "x   x 07|",
    "{{ 7 % 4 }}{{ 2 ** 10 }}{{ 3 * 4 }}{{ 1 + 2 }}{{ 1.5 * 2 }}": "31024123" + "3.0",
    "{{ [1] + [2] }}{{ {'a': [1, 2]}|tojson(indent=2)|length }}": "[1, 2]29",
    "{{ 2.345|round(1) }}{{ [1, 2, 3]|batch(2)|list }}": "2.3[[1, 2], [3]]",
    "{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('a') ~ m('b') }}": "<a><b>",
}


@pytest.mark.parametrize(("source", "want"), USUAL.items())
def test_what_templates_usually_do_is_as_ever(source: str, want: str) -> None:
    assert ChatTemplate(source, {}).render(chat()) == want
