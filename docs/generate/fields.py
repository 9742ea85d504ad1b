"""The page of the fields that may reach an engine, from the router's lists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from evenkeel_router.api.fields import CLOSED, NESTED, OPEN

from docs.generate.pages import bullets, code, page


def pages() -> Iterator[tuple[str, str]]:
    """Path and text of the page."""
    intro = (
        "The fields of a request's body that reach an engine, and those that the router removes. "
        "[Why there is a list](../design/fields.md) has the reasons, and [the router](router.md#what-is-not-passed-on) the rest that is removed."
    )
    alike: defaultdict[frozenset[str], list[str]] = defaultdict(list)
    for path, names in OPEN.items():
        alike[names].append(path)
    passes = [f"{', '.join(map(code, paths))}: {_listed(names)}." for names, paths in alike.items()]
    inside = [f"{code(name)}: {_listed(names)}." for name, names in NESTED.items()]
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for name, reason in CLOSED.items():
        reasons[reason].append(name)
    removed = [
        f"The field {reason}: {_listed(names)}." for reason, names in sorted(reasons.items())
    ]
    yield (
        "reference/fields.md",
        page(
            "Fields of bodies",
            intro,
            "## Fields that pass",
            bullets(passes),
            "Of these members, only these own members pass:",
            bullets(inside),
            "## Fields that are removed",
            "All others are removed. Engines and clients know these of them. A field may pass on one path and be removed on another. "
            "`allowFields` (in the resource `router.allowFields`) lets a field pass on every path, but for `routing_key`, `session_id` and `cache_salt`.",
            bullets(removed),
        ),
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(code(name) for name in sorted(names))
