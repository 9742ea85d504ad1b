"""Many fields changed at once: together they change what each changes alone.

A cluster in memory shows the effect of each field alone, and that the effects of these sets add up. So on a real cluster a
set stands for its fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.crd_documents import SERVICE, TENANT, Document, changed
from tests.support.effects import OTHER, TENANTS, Case

Table = Mapping[str, Mapping[str, Sequence[str]]]
"""Kind → field → what another value of it changes."""


@dataclass(frozen=True, slots=True)
class Together:
    """Fields of one service and its tenant, no two of which change the same place."""

    cases: tuple[Case, ...]

    def __str__(self) -> str:
        first, *more = (case.field for case in self.cases)
        return f"{first} and {len(more)} more" if more else first

    @property
    def before(self) -> tuple[Document, Document]:
        return self.cases[0].before

    @property
    def after(self) -> tuple[Document, Document]:
        service, tenant = self.before
        return (
            changed(service, self._changes(SERVICE["kind"], OTHER)),
            changed(tenant, self._changes(TENANT["kind"], TENANTS)),
        )

    def _changes(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        fields = [case.field for case in self.cases if case.kind == kind]
        return {f"spec.{field}".replace("[]", ".0"): values[field] for field in fields}

    def effects(self, table: Table) -> list[str]:
        """What the fields change, one by one."""
        return sorted(line for case in self.cases for line in table[case.kind][case.field])


def together(cases: Iterable[Case], table: Table) -> list[Together]:
    """All cases, in few sets."""
    sets: list[list[Case]] = []
    for case in cases:
        fits = (one for one in sets if all(_are_apart(case, other, table) for other in one))
        found = next(fits, None)
        if found is None:
            sets.append([case])
        else:
            found.append(case)
    return [Together(tuple(one)) for one in sets]


def _are_apart(one: Case, other: Case, table: Table) -> bool:
    return (
        one.before == other.before
        and set(table[one.kind][one.field]).isdisjoint(table[other.kind][other.field])
        and not _decides(one.field, other.field)
        and not _decides(other.field, one.field)
    )


def _decides(field: str, other: str) -> bool:
    """Whether a field says what the other one is about: it names it, or says whether there are engines, and which."""
    names = field.endswith(("[].name", ".resourceName"))
    about = field.rpartition(".")[0] if names else field
    return field in ("engine.runtime", "model.cache.fill") or other.startswith(about)
