"""A hook of mkdocs: files of the tree that pages link to are part of the site, and pages load nothing from other hosts.

A page may link to a file outside docs/, such as a sample or a measurement. The repository shows it; a site has only docs/.
So these files are copied to the folder `tree/` of the site.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT: Final = Path(__file__).parents[2]
_FOLDER: Final = "tree"
_LINK: Final = re.compile(r"(\]\()([^)\s#]+)([^)]*\))")
_LOADED: Final = re.compile(
    r"<(?:script|img|iframe|link(?=[^>]*stylesheet))\b[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*>"
)
_LIST: Final = re.compile(r"^([^\s|#>*+-][^\n]*\n|\*\*[^\n]*\n)(?=- |1\. )", re.MULTILINE)
"""A line of a paragraph before a list."""
_FENCE: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the linked files, and those that they link to."""
    todo = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    seen: set[Path] = set()
    docs = Path(config.docs_dir)
    while todo:
        page = todo.pop()
        for target in _targets(page):
            if target not in seen and docs not in target.parents:
                seen.add(target)
                name = f"{_FOLDER}/{target.relative_to(ROOT)}"
                added = File.generated(config, name, abs_src_path=str(target))
                added.inclusion = InclusionLevel.NOT_IN_NAV
                files.append(added)
                todo += [target] if target.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, config: MkDocsConfig) -> str:
    """Point the links at the files' places in the site, and set lists apart, as GitHub does."""
    source = Path(page.file.abs_src_path)

    def replaced(found: re.Match[str]) -> str:
        target = _resolved(source, found[2])
        if target is None:
            return found[0]
        here = Path(page.file.src_uri).parent
        return found[1] + os.path.relpath(_place(target, Path(config.docs_dir)), here) + found[3]

    def written(text: str) -> str:
        return _LIST.sub(r"\1\n", _LINK.sub(replaced, text))

    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [written(markdown[end : fence.start()]), fence.group()]
        end = fence.end()
    return "".join([*parts, written(markdown[end:])])


def on_post_page(output: str, page: Any, config: MkDocsConfig) -> str:
    """Refuse a page that loads a file of another host."""
    found = _LOADED.search(output)
    if found is not None:
        raise PluginError(f"{page.file.src_uri} loads a file of another host: {found.group()}")
    return output


def _targets(page: Path) -> set[Path]:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    found = (_resolved(page, link[2]) for link in _LINK.finditer(text))
    return {target for target in found if target is not None}


def _resolved(page: Path, link: str) -> Path | None:
    """The file that a link names; the README of a folder; None for an address or no file."""
    if re.match(r"[a-z]+:", link):
        return None
    target = (page.parent / link).resolve()
    if target.is_dir():
        target /= "README.md"
    return target if target.is_file() and ROOT in target.parents else None


def _place(target: Path, docs: Path) -> Path:
    """Where a file is in the site's sources."""
    inside = docs in target.parents
    return target.relative_to(docs) if inside else Path(_FOLDER) / target.relative_to(ROOT)
