"""Texts that users and contributors read are in plain words, and the names in docs exist.

`tests/support/plain_words.py` has the rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import evenkeel_plugin.metrics
import pytest
import yaml
from evenkeel_contract.crd import definitions
from prometheus_client import Counter, Gauge

from tests.support import plain_words
from tests.support.plain_words import (
    FORBIDDEN,
    MAX_WORDS,
    ROOT,
    Finding,
    descriptions,
    keyword_texts,
    leaning_docstrings,
    names_of,
    sentence_faults,
    texts,
    tree,
    words_in,
    words_of_comments,
    words_of_file,
    words_of_messages,
)

PYTHON: Final = tuple(
    f"{folder}/**/*.py"
    for folder in ("bench", "chaos", "cli", "contract", "crds", "docs", "e2e", "fairshare", "kube", "laboratory", "monitoring", "operator", "release", "router",
                   "plugins", "simulator")
)  # fmt: skip
SUBJECTS_NAMED: Final = (
    "cli", "contract", "fairshare", "images", "kube", "laboratory", "monitoring", "operator", "plugins", "release", "router", "simulator",
)  # fmt: skip
"""Packages whose docstrings name their subject."""
DOCS: Final = ("*.md", "docs/**/*.md", "charts/*.md", "bench/**/*.md", "chaos/*.md", "e2e/*.md")
HISTORY: Final = "CHANGELOG.md"
GLOSSARY: Final = "docs/reference/glossary.md"
WORDS: Final = "docs/design/plain-words.md"

Rule = Callable[[], Iterable[Finding]]


def messages() -> Iterator[Finding]:
    """Conditions, events, HTTP errors, log lines, metric help and command line texts."""
    for path in texts(*PYTHON):
        yield from words_of_messages(path)


def comments() -> Iterator[Finding]:
    """Docstrings and comments; a docstring of a command is its help."""
    for path in texts(*PYTHON):
        yield from words_of_comments(path)


def subjects() -> Iterator[Finding]:
    """Docstrings that can be read alone, also those under fields."""
    for path in texts(*(f"{folder}/**/*.py" for folder in SUBJECTS_NAMED)):
        yield from leaning_docstrings(path)


def shipped_files() -> Iterator[Finding]:
    """CRDs, the chart with its templates, alerts and dashboards."""
    for path in texts("crds/**/*.yaml", "charts/**/*", "monitoring/**/*.yaml"):
        yield from words_of_file(path)


def docs() -> Iterator[Finding]:
    """Documents; one lists the forbidden words, and the changelog is history."""
    for path in texts(*DOCS):
        if str(path.relative_to(ROOT)) not in (HISTORY, WORDS):
            yield from words_of_file(path)


def names_in_docs() -> Iterator[Finding]:
    """Files, metrics, fields, classes, functions and flags in backticks."""
    for path in texts(*DOCS):
        if path.name != HISTORY:
            yield from names_of(path, tree())


def command_line_help() -> Iterator[Finding]:
    """Sentences of options and commands."""
    for path in texts(*PYTHON):
        for line, text in keyword_texts(path, "help", "description", "epilog"):
            where = str(path.relative_to(ROOT))
            yield from (
                Finding(where, line, fault)
                for fault in sentence_faults(text)
                if not fault.startswith("is not a sentence")  # options have no full stop
            )


RULES: Final[Mapping[str, Rule]] = {
    rule.__name__: rule
    for rule in (
        messages,
        comments,
        subjects,
        shipped_files,
        docs,
        names_in_docs,
        command_line_help,
    )
}


@cache
def findings(name: str) -> tuple[Finding, ...]:
    return tuple(RULES[name]())


@pytest.mark.parametrize("name", RULES)
def test_texts_follow_the_rules_of_plain_words(name: str) -> None:
    found = [str(one) for one in findings(name)]
    assert found == []


CRD_FIELDS: Final = {
    f"{definition['spec']['names']['kind']}.{path}": text
    for definition in definitions().values()
    for path, text in descriptions(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    if not path.startswith("metadata")
}
VALUES: Final = dict(
    descriptions(json.loads((ROOT / "charts/evenkeel/values.schema.json").read_text()))
)


@pytest.mark.parametrize("fields", [CRD_FIELDS, VALUES], ids=["resources", "chart"])
def test_every_field_has_a_description_in_short_sentences(fields: Mapping[str, str | None]) -> None:
    assert len(fields) > 50
    assert {
        path: faults
        for path, text in fields.items()
        if (faults := list(sentence_faults(text or "")))
    } == {}


def test_messages_of_rules_name_the_field_and_are_short() -> None:
    rules = [rule for definition in definitions().values() for rule in _cel(definition)]
    assert len(rules) > 20
    assert [r["message"] for r in rules if len(r["message"].split()) > MAX_WORDS] == []
    unnamed = [
        rule["message"]
        for rule in rules
        if "fieldPath" in rule and rule["fieldPath"].split(".")[-1] not in rule["message"]
    ]
    assert unnamed == []


def _cel(node: Any) -> Iterator[Mapping[str, str]]:
    if isinstance(node, Mapping):
        yield from node.get("x-kubernetes-validations", ())
    for part in (
        node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
    ):
        yield from _cel(part)


def test_alerts_have_a_summary_in_short_sentences() -> None:
    rules = [
        rule
        for path in texts("monitoring/alerts/*.yaml")
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]
    assert len(rules) > 15
    assert {
        rule["alert"]: faults
        for rule in rules
        if (faults := list(sentence_faults(rule["annotations"]["summary"])))
    } == {}


def test_metrics_of_the_plugin_have_help_in_short_sentences() -> None:
    """Those of routers, replicas and the operator are read from their scrapes (tests/integration/test_exported_metrics.py)."""
    own = [
        one for one in vars(evenkeel_plugin.metrics).values() if isinstance(one, Counter | Gauge)
    ]
    assert own
    assert [fault for one in own for fault in sentence_faults(one._documentation)] == []


def test_every_term_of_the_glossary_has_a_short_explanation() -> None:
    text = (ROOT / GLOSSARY).read_text() + "\n" + (ROOT / WORDS).read_text() + "\n"
    entries = dict(
        re.findall(r"^\*\*(.+?)\.\*\* (.+?)(?: Code:|\nCode:|\n\n)", text, re.MULTILINE | re.DOTALL)
    )
    assert len(entries) == len(re.findall(r"^\*\*", text, re.MULTILINE)) >= 40
    assert {
        term: faults for term, text in entries.items() if (faults := list(sentence_faults(text)))
    } == {}


@pytest.mark.parametrize(
    "planted",
    [
        "A client is\ntold about it.",
        "The configuration does not hold.",
        "Nobody answers.",
        "The surprising thing: none.",
    ],
)
def test_a_forbidden_word_is_found_in_each_kind_of_file(
    planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_words, "ROOT", tmp_path)
    assert words_in(planted)
    text = tmp_path / "a.md"
    text.write_text(f"# Title\n\n{planted}\n")
    assert [one.line for one in words_of_file(text)] == [3 if "is\n" not in planted else 4]
    source = tmp_path / "a.py"
    source.write_text(f'"""Plain."""\nlog.info({planted!r})\n')
    assert [one.line for one in words_of_messages(source)] == [2]
    source.write_text(f"log.info(f'{{name}}: ' {planted!r})\n")
    assert list(words_of_messages(source))
    source.write_text(f'"""Plain."""\n\n\ndef f() -> None:\n    """{planted}"""\n')
    assert [one.line for one in words_of_comments(source)] == [5]
    assert not list(words_of_messages(source))
    source.write_text(f"x = 1  # {' '.join(planted.split())}\n")
    assert [one.line for one in words_of_comments(source)] == [1]


@pytest.mark.parametrize(
    ("planted", "refused"),
    [
        ("Of the whole prompt.", True),
        ("Those of them that wait.", True),
        ("As `charged`, for a tenant.", True),
        ("None: no limit.", True),
        ("Empty if no replica had it.", True),
        ("Set while events are published.", True),
        ("By client: its service.", True),
        ("Set the number of replicas.", False),
        ("Empty the cache.", False),
        ("Asked service of a client, weighted tokens.", False),
        ("client → its service, weighted tokens.", False),
    ],
)
def test_a_docstring_that_leans_on_the_line_above_is_refused(
    planted: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_words, "ROOT", tmp_path)
    source = tmp_path / "a.py"
    source.write_text(
        f'"""Plain."""\n\nclass A:\n    """A class."""\n\n    x: int\n    """{planted}"""\n'
    )
    assert [one.line for one in leaning_docstrings(source)] == [7] * refused


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Number of replicas.", None),
        ("Replicas.", "is not a sentence"),
        ("Number of replicas", "is not a sentence"),
        ("", "is not a sentence"),
        (f"Short. {'word ' * MAX_WORDS}word.", "has 26 words"),
        ("The number that somebody chose.", "'somebody' in"),
    ],
)
def test_a_description_that_is_no_short_sentence_is_found(text: str, fault: str | None) -> None:
    found = list(sentence_faults(text))
    assert found == [] if fault is None else found[0].startswith(fault)


@pytest.mark.parametrize(
    ("name", "exists"),
    [
        ("tests/unit/test_plain_words.py", True),
        ("tests/unit/test_no_such_file.py", False),
        ("spec.engine.replicas", True),
        ("autoscaling.minReplicas", True),
        ("autoscaling.fewestReplicas", False),
        ("evenkeel_router_service_total", True),
        ("evenkeel_router_no_such_metric_total".replace("_such", ""), False),
        ("FairInferenceService", True),
        ("UnfairInference" + "Service", False),
        ("kubectl get pods", True),  # not a name
    ],
)
def test_a_name_that_does_not_exist_is_found(name: str, exists: bool) -> None:
    assert tree().knows(name, ROOT / "README.md") is exists


def test_the_list_of_forbidden_words_is_without_doubles() -> None:
    assert len(set(FORBIDDEN)) == len(FORBIDDEN)
