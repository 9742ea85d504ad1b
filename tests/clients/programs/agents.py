"""Claude Code and Codex, each for ten turns of one conversation and the first turn of another: what they found in the cache.

Claude Code 2.1.177 writes a line of billing with a nonce before its system prompt; since then the line changes with the conversation only
(`api/volatile.py`). At a fleet that keeps the line the same turns show what the engine loses.
"""

from __future__ import annotations

import json
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.clients.fleet import MODEL, Fleet
from tests.clients.programs.check import LIMIT_S, Found, Place, Program

TURNS: Final = 10
MOST: Final = 0.75
"""Least part of the input that is found in the cache from the second turn on. A turn may go to the other replica."""
LEAST: Final = 0.1
"""Most part of it where the first line changes."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Input tokens of one or more turns, by the engine's usage as the agent reports it."""

    input: int = 0
    cached: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(self.input + other.input, self.cached + other.cached)

    @property
    def share(self) -> float:
        return self.cached / self.input

    def __str__(self) -> str:
        return f"{self.cached:,} of {self.input:,} ({self.share:.0%})"


@dataclass
class Agent(ABC):
    """An agent without a terminal, with a home of its own."""

    binary: Path
    fleet: Fleet
    key: str
    home: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.project = self.home / "project"
        self.project.mkdir(parents=True)
        (self.project / "README.md").write_text("Read me first.\n")

    @abstractmethod
    def turn(self, prompt: str, *, first: bool) -> Tokens:
        """One turn, of a new conversation or of the latest one."""

    def ten_turns(self) -> Tokens:
        """Tokens of the turns after the first."""
        turns = [self.turn(f"Step {n} of ten, please", first=n == 0) for n in range(TURNS)]
        return sum(turns[1:], Tokens())

    def _run(self, words: Sequence[str]) -> list[Any]:
        """The lines of JSON that a command prints."""
        done = subprocess.run(
            [str(self.binary), *words],
            cwd=self.project,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.home), "NO_PROXY": "127.0.0.1"}
            | self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        said = f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
        assert done.returncode == 0, said
        return [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"]


class ClaudeCode(Agent):
    """`claude --print`, which may read files."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.environment |= {
            "ANTHROPIC_BASE_URL": self.fleet.url,
            "ANTHROPIC_AUTH_TOKEN": self.key,
            "ANTHROPIC_MODEL": MODEL,
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "512",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }

    def turn(self, prompt: str, *, first: bool) -> Tokens:
        words = ["--print", prompt, "--output-format", "json", "--tools", "Read"]
        [result] = self._run(words if first else [*words, "--continue"])
        assert not result["is_error"] and result["result"], result
        usage: Mapping[str, int] = result["usage"]
        cached = usage["cache_read_input_tokens"]
        return Tokens(usage["input_tokens"] + cached, cached)


class Codex(Agent):
    """`codex exec` without a shell: a simulated replica writes words, which a shell would run."""

    _CONFIG: Final = """
model = "{model}"
model_provider = "evenkeel"
[model_providers.evenkeel]
name = "Evenkeel"
base_url = "{url}/v1"
env_key = "EVENKEEL_KEY"
wire_api = "responses"
[features]
shell_tool = false
unified_exec = false
multi_agent = false
"""

    def __post_init__(self) -> None:
        super().__post_init__()
        config = self.home / ".codex" / "config.toml"
        config.parent.mkdir()
        config.write_text(self._CONFIG.format(model=MODEL, url=self.fleet.url))
        self.environment["EVENKEEL_KEY"] = self.key
        self._before = Tokens()

    def turn(self, prompt: str, *, first: bool) -> Tokens:
        command = ["exec"] if first else ["exec", "resume", "--last"]
        events = self._run([*command, "--skip-git-repo-check", "--json", prompt])
        assert any(
            event.get("item", {}).get("type") == "agent_message" and event["item"]["text"]
            for event in events
        ), events
        [usage] = [event["usage"] for event in events if event["type"] == "turn.completed"]
        before = Tokens() if first else self._before
        # Of the whole conversation so far.
        self._before = Tokens(usage["input_tokens"], usage["cached_input_tokens"])
        return self._before + Tokens(-before.input, -before.cached)


def _claude(version: str) -> Program:
    name = f"Claude Code {version}"

    def checks(place: Place) -> Iterator[Found]:
        binary = place.programs.native("claude-code-linux-*", version, "claude")
        removing, keeping = (
            ClaudeCode(binary, fleet, place.key, place.folder / which)
            for which, fleet in (("removing", place.fleet), ("keeping", place.keeping))
        )
        nonce = version == NONCE
        for which, agent, most in (("removed", removing, True), ("kept", keeping, not nonce)):
            turns = agent.ten_turns()
            yield Found(
                program=name,
                check=f"turns 2 to {TURNS}, line {which}: cached",
                passed=turns.share > MOST if most else turns.share < LEAST,
                figure=str(turns),
            )
            other = agent.turn("And now for something completely different", first=True)
            yield Found(
                program=name,
                check=f"another conversation, line {which}: cached",
                passed=other.share > LEAST if which == "removed" else other.share < LEAST,
                figure=str(other),
            )

    return Program(name, checks)


def _codex(place: Place) -> Iterator[Found]:
    binary = place.programs.native("codex-linux-*", CODEX, "vendor/*/bin/codex")
    agent = Codex(binary, place.fleet, place.key, place.folder / "codex")
    turns = agent.ten_turns()
    yield Found(
        program=f"Codex {CODEX}",
        check=f"turns 2 to {TURNS}: cached",
        passed=turns.share > MOST,
        figure=str(turns),
    )
    other = agent.turn("And now for something completely different", first=True)
    yield Found(
        program=f"Codex {CODEX}",
        check="another conversation: cached",
        passed=other.share > LEAST,
        figure=str(other),
    )


NONCE: Final = "2.1.177"
CODEX: Final = "0.171.0"
PROGRAMS: Final = (
    _claude(NONCE),
    _claude("2.1.332"),
    Program(f"Codex {CODEX}", _codex),
)
