"""Drawn pictures for the README and the explanations: SVG that reads well on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from xml.sax.saxutils import escape

_STYLE: Final = """\
<style>
  .card{fill:#ffffff;stroke:#d0d7de} .box{fill:#f6f8fa;stroke:#8c959f} .own{fill:#ddf4f0;stroke:#0a7d6f}
  .bar{fill:#0a9b8a} .debt{fill:#cf5c36} .spare{fill:#c9d1d9} .line{stroke:#57606a;fill:none} .thin{stroke:#57606a;stroke-dasharray:4 4;fill:none}
  text{fill:#1f2328;font:14px system-ui,sans-serif} .small{font-size:12px;fill:#57606a} .bold{font-weight:600} .tip{fill:#57606a}
  @media (prefers-color-scheme: dark){
    .card{fill:#0d1117;stroke:#30363d} .box{fill:#161b22;stroke:#6e7681} .own{fill:#0b3b36;stroke:#2dd4bf}
    .bar{fill:#2dd4bf} .debt{fill:#f0883e} .spare{fill:#484f58} .line,.thin{stroke:#9198a1} text{fill:#e6edf3} .small{fill:#9198a1} .tip{fill:#9198a1}
  }
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse">
<path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>
"""


def pages() -> Iterator[tuple[str, str]]:
    """Path and text of each picture."""
    yield (
        "images/architecture.svg",
        _picture(
            860,
            372,
            "Clients send requests to routers, which send them to replicas; the operator runs both.",
            _architecture(),
        ),
    )
    yield (
        "images/deficits.svg",
        _picture(860, 262, "Deficits of three clients before and after a refill.", _deficits()),
    )
    yield (
        "images/choice.svg",
        _picture(
            860,
            232,
            "A router sends a request to the replica that caches its prefix, unless the wait there is too long.",
            _choice(),
        ),
    )


def _picture(width: int, height: int, title: str, parts: Iterator[str]) -> str:
    card = (
        f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>\n'
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n<title>{escape(title)}</title>\n'
    return head + _STYLE + card + "\n".join(parts) + "\n</svg>\n"


def _text(x: float, y: float, text: str, *, kind: str = "", anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def _box(x: float, y: float, width: float, height: float, *lines: str, kind: str = "box") -> str:
    """A box; its first line is bold, the others are small."""
    middle, top = x + width / 2, y + height / 2 - 8 * (len(lines) - 1) + 5
    texts = [
        _text(middle, top + 17 * n, line, kind="small" if n else "bold")
        for n, line in enumerate(lines)
    ]
    frame = (
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>'
    )
    return "\n".join([frame, *texts])


def _arrow(
    x1: float, y1: float, x2: float, y2: float, *, kind: str = "line", both: bool = False
) -> str:
    start = ' marker-start="url(#tip)"' if both else ""
    return f'<path class="{kind}" d="M{x1:g} {y1:g} {x2:g} {y2:g}" marker-end="url(#tip)"{start}/>'


def _architecture() -> Iterator[str]:
    yield _text(90, 30, "clients of tenants", kind="small")
    for n, name in enumerate(("ads/chat", "ads/batch", "search/rerank")):
        yield _box(20, 44 + 52 * n, 140, 38, name)
        yield _arrow(160, 63 + 52 * n, 238, 92 + 20 * n)
    yield _text(345, 28, "routers: D2LPM", kind="small")
    yield '<rect class="thin" x="230" y="36" width="230" height="232" rx="8"/>'
    yield _box(
        240,
        44,
        210,
        136,
        "Router",
        "identify, check limits",
        "find cached prefixes",
        "choose a replica, stream",
        "account",
        kind="own",
    )
    yield _box(240, 208, 210, 50, "Ledger", "served and owed, fleet-wide", kind="own")
    yield _arrow(345, 182, 345, 206, both=True)
    yield _text(690, 30, "replicas: DLPM in each engine", kind="small")
    for n in range(3):
        yield _box(
            560,
            44 + 74 * n,
            270,
            60,
            f"Replica {n + 1}",
            "queue by deficit, then by cached prefix",
            kind="own",
        )
        yield _arrow(450, 90 + 20 * n, 558, 74 + 74 * n)
        yield _arrow(558, 90 + 74 * n, 452, 224 + 10 * n, kind="thin")
    yield _text(560, 278, "reports, each second", kind="small")
    yield _box(240, 300, 210, 50, "Operator", "runs, scales and upgrades both")
    yield _arrow(450, 325, 690, 325)
    yield '<path class="line" d="M690 325 690 256" marker-end="url(#tip)"/>'
    yield _arrow(345, 298, 345, 271)
    yield _box(20, 300, 140, 50, "Resources", "service, tenants")
    yield _arrow(160, 325, 238, 325)


def _deficits() -> Iterator[str]:
    for x, title, values in (
        (40, "no queued client has credit: all are refilled", (-12, -70, -4)),
        (450, "after the refill: two clients are eligible", (52, -6, 60)),
    ):
        yield _text(x, 32, title, kind="bold", anchor="start")
        yield f'<path class="line" d="M{x} 130 {x + 370} 130"/>'
        yield _text(x + 372, 126, "0", kind="small")
        for n, (name, value) in enumerate(
            zip(("chat", "batch (flood)", "rerank"), values, strict=True)
        ):
            left, top = x + 20 + 120 * n, 130 - max(value, 0)
            kind = "bar" if value > 0 else "debt"
            yield f'<rect class="{kind}" x="{left}" y="{top}" width="70" height="{abs(value)}"/>'
            yield _text(left + 35, 226, name, kind="small")
    yield _arrow(410, 84, 446, 84)
    yield _text(428, 74, "+Q", kind="small")


def _choice() -> Iterator[str]:
    yield _box(20, 86, 150, 60, "Request of chat", "prefix A, question 7")
    rows = (
        ("Replica 1", "caches prefix A", 90, "short wait: gets the request"),
        ("Replica 2", "empty cache", 30, "shorter wait, but computes A again"),
        ("Replica 3", "caches prefix B", 60, "no match"),
    )
    for n, (name, cached, wait, verdict) in enumerate(rows):
        y = 30 + 64 * n
        yield _box(300, y, 160, 50, name, cached, kind="own" if n == 0 else "box")
        yield f'<rect class="{"bar" if n == 0 else "spare"}" x="480" y="{y + 16}" width="{wait}" height="18"/>'
        yield _text(590, y + 30, verdict, kind="small", anchor="start")
        yield _arrow(170, 116, 298, y + 25, kind="line" if n == 0 else "thin")
    yield _text(480, 22, "wait", kind="small", anchor="start")
