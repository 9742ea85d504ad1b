"""A text that a regular expression matches, drawn by chance."""

from __future__ import annotations

import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Callable, Iterable
from random import Random
from string import ascii_letters, digits, punctuation
from typing import Any, Final

_MAX_CHARS: Final = 2000
_LONGEST_RUN: Final = 8
_ALPHABET: Final = f"{ascii_letters}{digits}_- {punctuation}"
_CATEGORIES: Final[dict[Any, Callable[[str], bool]]] = {
    codes.CATEGORY_DIGIT: str.isdigit,
    codes.CATEGORY_NOT_DIGIT: lambda c: not c.isdigit(),
    codes.CATEGORY_SPACE: str.isspace,
    codes.CATEGORY_NOT_SPACE: lambda c: not c.isspace(),
    codes.CATEGORY_WORD: lambda c: c.isalnum() or c == "_",
    codes.CATEGORY_NOT_WORD: lambda c: not (c.isalnum() or c == "_"),
}


class UnsupportedPattern(ValueError):
    """The simulator writes no text by this pattern; the message says why."""


def text_by_pattern(pattern: str, rng: Random, *, longest: int = _LONGEST_RUN) -> str:
    """A text that `pattern` matches from its start; a repetition without end is drawn up to `longest` times.

    Raises `UnsupportedPattern` for look-around, references to groups and texts over 2,000 characters, and `re.error`.
    """
    return _Draw(rng, longest).sequence(parser.parse(pattern))


class _Draw:
    def __init__(self, rng: Random, longest: int) -> None:
        self._rng = rng
        self._longest = longest
        self._chars_left = _MAX_CHARS

    def sequence(self, nodes: Iterable[tuple[Any, Any]]) -> str:
        return "".join([self._node(code, given) for code, given in nodes])

    def _node(self, code: Any, given: Any) -> str:
        if code is codes.AT:  # an anchor: the text begins and ends with the match
            return ""
        if code is codes.BRANCH:
            return self.sequence(self._rng.choice(given[1]))
        if code is codes.SUBPATTERN:
            return self.sequence(given[-1])
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            least, most, nodes = given
            times = self._rng.randint(least, min(int(most), max(least + 3, self._longest)))
            return "".join([self.sequence(nodes) for _ in range(times)])
        return self._character(code, given)

    def _character(self, code: Any, given: Any) -> str:
        self._chars_left -= 1
        if self._chars_left < 0:
            raise UnsupportedPattern(f"a pattern for more than {_MAX_CHARS} characters")
        if code is codes.LITERAL:
            return chr(given)
        if code is codes.ANY:
            return self._rng.choice(ascii_letters)
        if code not in (codes.IN, codes.NOT_LITERAL):
            raise UnsupportedPattern(
                f"the pattern uses {str(code).lower()}, which is not supported"
            )
        items = given if code is codes.IN else [(codes.NEGATE, None), (codes.LITERAL, given)]
        fitting = [c for c in _candidates(items) if _accepts(items, c)]
        if not fitting:
            raise UnsupportedPattern("a class of characters in the pattern is empty")
        return self._rng.choice([c for c in fitting if c.isalnum()] or fitting)


def _candidates(items: list[tuple[Any, Any]]) -> str:
    named = [chr(given) for code, given in items if code is codes.LITERAL]
    named += [chr(c) for code, given in items if code is codes.RANGE for c in given]
    return _ALPHABET + "".join(named)


def _accepts(items: list[tuple[Any, Any]], character: str) -> bool:
    negated = bool(items) and items[0][0] is codes.NEGATE
    return negated != any(_matches(code, given, character) for code, given in items)


def _matches(code: Any, given: Any, character: str) -> bool:
    if code is codes.LITERAL:
        return ord(character) == int(given)
    if code is codes.RANGE:
        return bool(given[0] <= ord(character) <= given[1])
    if code is codes.CATEGORY:
        return _CATEGORIES[given](character)
    return False
