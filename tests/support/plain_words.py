"""Finds texts that break the rules of plain words: forbidden words, long sentences, names that do not exist.

Each finder yields `Finding`s. `tests/unit/test_plain_words.py` applies them to the tree, and the scrape test in
`tests/integration/test_exported_metrics.py` applies them to the help of real metrics.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import msgspec
from evenkeel_contract.adminstate import RouterState
from evenkeel_contract.crd import definitions
from evenkeel_contract.decode import Shape, fields_of, shape_of
from evenkeel_contract.routerconfig import RouterConfig

ROOT: Final = Path(__file__).parents[2]
MAX_WORDS: Final = 25
MIN_WORDS: Final = 3
EXTERNAL: Final = frozenset(
    {"--decode-log-interval", "--enable-trace", "--otlp-traces-endpoint", "OTEL_EXPORTER_OTLP_CERTIFICATE", "OTEL_EXPORTER_OTLP_HEADERS",
     "kubernetes_asyncio"}
)  # fmt: skip
"""Names of other projects, which docs mention and the tree does not use."""

FORBIDDEN: Final = (
    # Persons in place of the client, the replica, the request.
    r"nobody", r"somebody", r"whoever", r"whomever", r"whosoever", r"everybody",
    # Speech in place of reports, notifications and messages.
    r"told", r"tells?", r"telling", r"foretold", r"tidings", r"untold",
    # Riddles in place of invalid, missing, not set.
    r"amiss", r"(?:does|did|do) not hold", r"that (?:is|are) none", r"what becomes of", r"becomes of",
    r"cannot stand beside", r"as promised", r"beyond (?:all )?reason", r"for ever", r"whence", r"thereof",
    # Devices of docstrings.
    r"the surprising thing", r"place in the (?:flow|pass)",
    # Persons in place of data.
    r"stands? back", r"standing back", r"(?:is|are) forgiven", r"victims?", r"wish(?:es)?",
    # Homonyms; docs/design/plain-words.md has the terms.
    r"withheld", r"withholds?", r"sealers?", r"start(?:s|ed|ing)? level",
)  # fmt: skip
_FORBIDDEN: Final = re.compile(r"\b(?:" + "|".join(FORBIDDEN) + r")\b", re.IGNORECASE)

LEANING: Final = (
    r"(?:above|also|as|at|below|between|by|called|during|equal|for|from|if|in|into|it|its|likewise|minus|negative|never|not|of|on|over|per|rounded|so)\b",
    r"(?:such|that|their|them|then|these|they|those|through|to|under|until|usually|whose|with|within|without)\b",
    r"there (?:are|is)\b|the same(?:[,;]| (?:for|of|when|with|without)\b)",
    r"(?:none|true|false|empty)(?:[:;,.]| (?:if|for|while|until|where|before|after)\b)",
    r"set (?:after|if|once|unless|when|while|with)\b",
)  # fmt: skip
"""Beginnings that continue the line above; a docstring names its subject and can be read alone."""
_LEANING: Final = re.compile("|".join(LEANING), re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Finding:
    """One text that breaks a rule."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def words_in(text: str) -> list[str]:
    """The forbidden words of a text; line breaks count as blanks."""
    return [found.group().lower() for found in _FORBIDDEN.finditer(" ".join(text.split()))]


def sentence_faults(text: str) -> Iterator[str]:
    """What is wrong with a description, which must be one or more short sentences."""
    flat = " ".join(text.split())
    if len(flat.split()) < MIN_WORDS or not flat.endswith("."):
        yield f"is not a sentence: {flat!r}"
    for sentence in re.split(r"(?<=[.!?])\s+", flat):
        length = len(sentence.split())
        if length > MAX_WORDS:
            yield f"has {length} words: {sentence!r}"
    yield from (f"{word!r} in {flat!r}" for word in words_in(flat))


def texts(*patterns: str) -> Iterator[Path]:
    """The files of the tree that match one of the patterns, relative to its root."""
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def words_of_file(path: Path) -> Iterator[Finding]:
    """Forbidden words anywhere in a file, also across a line break."""
    text = path.read_text(encoding="utf-8")
    for found in _FORBIDDEN.finditer(re.sub(r"\s", " ", text)):
        yield _finding(path, text[: found.start()].count("\n") + 1, f"{found.group()!r}")


def words_of_messages(path: Path) -> Iterator[Finding]:
    """Forbidden words in string literals of Python, without docstrings."""
    for line, text in literals(path):
        yield from (_finding(path, line, f"{word!r} in {text!r}") for word in words_in(text))


def words_of_comments(path: Path) -> Iterator[Finding]:
    """Forbidden words in docstrings and comments of Python."""
    source = path.read_text(encoding="utf-8")
    found = [(node.lineno, str(node.value)) for node in _docstrings(ast.parse(source))]
    found += [
        (token.start[0], token.string)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    for line, text in sorted(found):
        yield from (_finding(path, line, f"{word!r}") for word in words_in(text))


def leaning_docstrings(path: Path) -> Iterator[Finding]:
    """Docstrings that begin in the middle of a sentence."""
    for node in _docstrings(ast.parse(path.read_text(encoding="utf-8"))):
        if found := _LEANING.match(str(node.value).strip()):
            yield _finding(path, node.lineno, f"a docstring begins with {found.group()!r}")


def literals(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each string literal; `…` replaces the values of an f-string."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {id(node) for node in _docstrings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [p.value if isinstance(p, ast.Constant) else "…" for p in node.values]
            skipped.update(id(part) for part in node.values)
            yield node.lineno, "".join(str(part) for part in parts)
    for node in ast.walk(tree):
        if (text := _text_of(node)) is not None and id(node) not in skipped:
            yield node.lineno, text  # type: ignore[attr-defined]


def _docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Texts that stand alone: docstrings, also those under fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def keyword_texts(path: Path, *names: str) -> Iterator[tuple[int, str]]:
    """Line and text of literals that are passed as one of the keywords, such as `help`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg in names and (text := _text_of(node.value)):
            yield node.value.lineno, text


def _text_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def descriptions(node: Any, path: str = "") -> Iterator[tuple[str, str | None]]:
    """Path and description of each property of a JSON schema; None if it has no description."""
    if not isinstance(node, Mapping):
        return
    for name, part in node.get("properties", {}).items():
        where = f"{path}.{name}".removeprefix(".")
        yield where, part.get("description")
        yield from descriptions(part, where)
    yield from descriptions(node.get("items"), f"{path}[]")


_TICKS: Final = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_FENCE: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_PATH: Final = re.compile(
    r"[\w.-]*/?(?:[\w.-]+/)*[\w.-]+\.(?:py|md|yaml|json|toml|cfg|tpl|png)|(?:[\w.-]+/){2,}"
)
_METRIC: Final = re.compile(r"(?:evenkeel_(?:router|operator|engine)_|sglang:)(\w+)")
_METRIC_PARTS: Final = re.compile(
    r"^evenkeel_(?:router|operator|engine)_|^sglang:|_(?:bucket|count|sum|total|seconds)$"
)
_FIELDS: Final = re.compile(r"[a-z][A-Za-z0-9]*(?:\[\])?(?:\.[a-z][A-Za-z0-9]*(?:\[\])?)+")
_NAME: Final = re.compile(r"[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+|[A-Za-z]\w*_\w+|--[a-z][a-z-]+")


def names_of(path: Path, tree: Tree) -> Iterator[Finding]:
    """Names in backticks that do not exist: files, metrics, fields, classes, functions and flags."""
    text = path.read_text(encoding="utf-8")
    blanked = _FENCE.sub(lambda fence: re.sub(r"[^\n]", " ", fence.group()), text)
    for found in _TICKS.finditer(blanked):
        name = found[1].rstrip(":,;")
        if not tree.knows(name, path):
            yield _finding(path, text[: found.start()].count("\n") + 1, f"no such name: {name}")


@dataclass(frozen=True, slots=True)
class Tree:
    """The names that exist in the tree."""

    files: frozenset[str]
    words: frozenset[str]
    fields: frozenset[str]
    """Paths of fields, and all their suffixes: `spec.engine.gpu` gives `engine.gpu` too."""
    objects: frozenset[str]
    """First parts of field paths that have more parts."""

    def knows(self, name: str, at: Path) -> bool:
        """Whether a name exists; text that is not a name counts as known."""
        if _METRIC.fullmatch(name):
            return not self.words.isdisjoint(
                (name, _METRIC.sub(lambda found: found[1], name), _METRIC_PARTS.sub("", name))
            )
        if _PATH.fullmatch(name):
            in_tree = (at.parent / name).exists() or any(f"/{name}" in f"/{f}" for f in self.files)
            return in_tree or name in self.words
        if _FIELDS.fullmatch(name) and name.split(".")[0] in self.objects:
            return name.replace("[]", "") in self.fields
        if _NAME.fullmatch(name):
            return not self.words.isdisjoint(_forms(name)) or name in EXTERNAL
        return True


def _forms(name: str) -> Iterator[str]:
    """A name as the source has it: metrics without prefix and unit, flags as parameters of a command."""
    yield name
    yield _METRIC_PARTS.sub("", name)
    yield from (f"evenkeel_{part}_{name}" for part in ("router", "operator", "engine"))
    yield name.removeprefix("--").removeprefix("no-").replace("-", "_")


_SOURCES: Final = (".py", ".yaml", ".json", ".toml", ".tpl", ".txt", ".sh", ".cfg", "")
_FOLDERS: Final = (
    "bench", "chaos", "charts", "cli", "contract", "crds", "e2e", "examples", "fairshare", "images", "kube", "laboratory", "monitoring",
    "operator", "plugins", "router", "simulator", "tests",
)  # fmt: skip


@cache
def tree() -> Tree:
    """The names of this tree, read once."""
    found = [path for folder in _FOLDERS for path in texts(f"{folder}/**/*")] + list(
        texts("*", "docs/**/*")
    )
    words: set[str] = set()
    for path in found:
        if path.suffix in _SOURCES:
            text = path.read_text(encoding="utf-8", errors="replace")
            words.update(re.findall(r"--[a-z][a-z-]+|\w+", text))
            words.update(re.findall(r"\w+\.(?:json|png|jinja|yaml)", text))
    fields = set(_field_paths())
    suffixes = {".".join(f.split(".")[i:]) for f in fields for i in range(f.count(".") + 1)}
    return Tree(
        files=frozenset(str(path.relative_to(ROOT)) for path in found),
        words=frozenset(words),
        fields=frozenset(suffixes),
        objects=frozenset(suffix.split(".")[0] for suffix in suffixes if "." in suffix),
    )


def _field_paths() -> Iterator[str]:
    """Fields of both resources, of the chart's values, of a router's configuration and of its state."""
    for definition in definitions().values():
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        yield from (path.replace("[]", "") for path, _ in descriptions(schema))
    values = json.loads((ROOT / "charts/evenkeel/values.schema.json").read_text())
    yield from (path for path, _ in descriptions(values))

    yield from _configured(RouterConfig)
    yield from _reported(RouterState)


def _configured(cls: type, path: str = "") -> Iterator[str]:
    for wire, field in fields_of(cls).items():
        yield path + wire
        shape, inner = shape_of(field.hint)
        while shape in (Shape.CONSTRAINED, Shape.OPTIONAL, Shape.LIST):
            shape, inner = shape_of(inner[0] if shape is Shape.CONSTRAINED else inner)
        if shape is Shape.OBJECT:
            yield from _configured(inner, f"{path}{wire}.")


def _reported(cls: type, path: str = "") -> Iterator[str]:
    for name, hint in get_type_hints(cls).items():
        yield path + name
        for inner in (hint, *get_args(hint)):
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                yield from _reported(inner, f"{path}{name}.")


def _finding(path: Path, line: int, what: str) -> Finding:
    return Finding(str(path.relative_to(ROOT)), line, what)
