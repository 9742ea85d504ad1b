"""The simulator's tokenizer and its speech: reversible, self-synchronising, decided by the prompt."""

from __future__ import annotations

from array import array

import pytest
from evenkeel_contract.simulatedprompt import encode
from evenkeel_simulator.server import speech, tokens
from evenkeel_simulator.server.speech import AnswerLimits, seed_of, speak
from hypothesis import given
from hypothesis import strategies as st

WORDS = st.text(alphabet="abcXYZ", min_size=1, max_size=9)
TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0\2"))


@given(TEXTS)
def test_text_comes_back_from_its_tokens(text: str) -> None:
    assert tokens.decode(encode(text)) == text


@given(TEXTS)
def test_a_token_is_at_most_four_bytes(text: str) -> None:
    assert 4 * len(encode(text)) >= len(text.encode())


@given(TEXTS.filter(lambda text: not text.endswith(" ")), WORDS, TEXTS)
def test_a_text_that_goes_on_with_a_word_keeps_its_tokens(start: str, word: str, rest: str) -> None:
    together = encode(f"{start} {word}{rest}")
    assert together == encode(start) + encode(f" {word}{rest}")


def test_token_ids_are_32_bit_numbers() -> None:
    assert tokens.are_tokens([0, 2**32 - 1])
    for wrong in (-1, 2**32, "1", True, 1.0):
        assert not tokens.are_tokens([wrong])


def test_a_half_surrogate_is_no_text() -> None:
    with pytest.raises(UnicodeEncodeError):
        encode("\ud800")


@given(st.integers(0, 2**64 - 1), st.integers(1, 300))
def test_an_answer_is_one_token_a_word_and_reads_back_as_its_ids(seed: int, limit: int) -> None:
    answer = speak(seed, AnswerLimits(max_tokens=limit, ignore_eos=True))
    assert answer.tokens == limit
    assert answer.matched is None
    assert encode(answer.text()).tolist() == answer.ids()


@given(st.integers(0, 2**64 - 1))
def test_an_answer_that_ends_by_itself_ends_with_a_silent_token(seed: int) -> None:
    answer = speak(seed, AnswerLimits(max_tokens=4096))
    assert answer.tokens == speech.natural_tokens(seed)
    assert answer.matched == tokens.END_TOKEN == answer.ids()[-1]
    assert answer.piece(answer.tokens - 1) == ""
    assert encode(answer.text()).tolist() == answer.ids()[:-1]


@given(st.integers(0, 2**64 - 1), st.integers(0, 300))
def test_min_tokens_holds_the_end_back(seed: int, least: int) -> None:
    answer = speak(seed, AnswerLimits(max_tokens=4096, min_tokens=least))
    assert answer.tokens > least


@given(st.integers(0, 2**64 - 1), st.integers(1, 40), st.data())
def test_text_in_parts_is_the_text_at_once(seed: int, limit: int, data: st.DataObject) -> None:
    answer = speak(seed, AnswerLimits(max_tokens=limit, stop=(" sun", "on a")))
    cut = data.draw(st.integers(0, answer.tokens))
    assert answer.text(0, cut) + answer.text(cut) == answer.text()
    assert answer.ids(0, cut) + answer.ids(cut) == answer.ids()


@given(st.integers(0, 2**64 - 1), st.integers(3, 60), st.integers(1, 8), st.booleans())
def test_a_stop_string_cuts_where_it_first_appears(
    seed: int, at: int, length: int, keep: bool
) -> None:
    whole = speak(seed, AnswerLimits(max_tokens=300, ignore_eos=True)).text()
    stop = whole[at : at + length]
    answer = speak(
        seed, AnswerLimits(max_tokens=300, ignore_eos=True, stop=(stop,), keep_stop=keep)
    )
    first = whole.index(stop)
    assert answer.matched == stop
    assert answer.text() == (whole[: first + length] if keep else whole[:first])
    assert len("".join(tokens.decode([i]) for i in answer.ids())) >= first + length


def test_a_stop_string_is_not_looked_for_before_min_tokens() -> None:
    whole = speak(7, AnswerLimits(max_tokens=50, ignore_eos=True))
    stop = whole.piece(0)
    answer = speak(7, AnswerLimits(max_tokens=50, ignore_eos=True, min_tokens=5, stop=(stop,)))
    assert answer.tokens >= 5


def test_a_stop_token_ends_the_answer_and_is_not_said() -> None:
    whole = speak(7, AnswerLimits(max_tokens=50, ignore_eos=True))
    stop = whole.ids()[10]
    answer = speak(
        7, AnswerLimits(max_tokens=50, ignore_eos=True, stop_token_ids=frozenset([stop]))
    )
    assert answer.matched == stop == answer.ids()[-1]
    assert answer.text() == whole.text(0, whole.ids().index(stop))


def test_natural_lengths_are_spread_about_their_median() -> None:
    lengths = sorted(speech.natural_tokens(seed_of(array("I", [i]), 0)) for i in range(2000))
    assert 100 < lengths[1000] < 160
    assert lengths[0] < 30 and lengths[-1] > 600


def test_choices_of_one_prompt_differ_and_the_same_choice_does_not() -> None:
    prompt = encode("hello")
    assert seed_of(prompt, 0) == seed_of(prompt, 0)
    assert seed_of(prompt, 0) != seed_of(prompt, 1)
