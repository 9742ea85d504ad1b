"""A contract of import-linter: pure modules import what a list allows, and nothing else.

The modules of the product that they import, directly or not, must also import only that. Names are exact: `urllib.parse`
allows `from urllib.parse import quote`, and not `from urllib import request`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from itertools import accumulate

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output
from importlinter.application.contract_utils import AlertLevel, remove_ignored_imports
from importlinter.domain.helpers import module_expressions_to_modules

_IMPORT = re.compile(r"\b(?:from|import) ([\w.]+)(?: import ([\w ,]+))?")


class PureContract(Contract):
    """All modules may import those of `pure_standard_library`, an option of the whole file."""

    source_modules = fields.SetField(subfield=fields.ModuleExpressionField())
    """They include all modules below them."""
    allowed_modules = fields.SetField(subfield=fields.StringField(), required=False, default=set())
    ignore_imports = fields.SetField(subfield=fields.ImportExpressionField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Look at every import of what the source modules load."""
        remove_ignored_imports(graph, self.ignore_imports, AlertLevel.ERROR)
        allowed = (*self.session_options["pure_standard_library"], *self.allowed_modules)
        forbidden = [
            f"{' -> '.join(path)} (l.{line_number}) imports {name}"
            for path in self._loaded(graph)
            for name, line_number in self._external_imports(graph, path[-1])
            if not any(f"{name}.".startswith(f"{one}.") for one in allowed)
        ]
        return ContractCheck(kept=not forbidden, metadata={"forbidden": forbidden})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print each import, with the path that leads to it."""
        for line in check.metadata["forbidden"]:
            output.print_error(f"- {line}", bold=False)

    def _loaded(self, graph: ImportGraph) -> Iterator[tuple[str, ...]]:
        """The shortest path to each module that the source modules load, their packages included."""
        sources = {one.name for one in module_expressions_to_modules(graph, self.source_modules)}
        sources.update(*map(graph.find_descendants, sources))
        paths = deque((name,) for name in sorted(sources))
        while paths:
            path = paths.popleft()
            yield path
            for imported in sorted(graph.find_modules_directly_imported_by(path[-1])):
                for name in accumulate(imported.split("."), "{}.{}".format):
                    if self._is_ours(name) and name not in sources:
                        sources.add(name)
                        paths.append((*path, name))

    def _external_imports(self, graph: ImportGraph, importer: str) -> Iterator[tuple[str, int]]:
        """Full names that a module imports from outside the product, with their lines."""
        for imported in sorted(graph.find_modules_directly_imported_by(importer)):
            if not self._is_ours(imported):
                for one in graph.get_import_details(importer=importer, imported=imported):
                    for name in names_of(one["line_contents"], imported):
                        yield name, one["line_number"]

    def _is_ours(self, module: str) -> bool:
        return module.partition(".")[0] in self.session_options["root_packages"]


def names_of(line: str, module: str) -> list[str]:
    """What a line imports from a top-level `module`; its own name where the line does not show more."""
    found = _IMPORT.search(line)
    if found is None or found[1].partition(".")[0] != module:
        return [module]
    if found[2] is None:
        return [found[1]]
    return [f"{found[1]}.{member.split()[0]}" for member in found[2].split(",")]
