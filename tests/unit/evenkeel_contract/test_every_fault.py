"""Every line that finds a fault is reached by a case: of the tables that the API server is tested with too, where it
could find the fault as well.

Which lines those are is read from the code, so that a new fault without a case is found here.
"""

from __future__ import annotations

import ast
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final

import pytest
from evenkeel_contract import decode, queueorder, values
from evenkeel_contract.crd import definitions
from evenkeel_contract.gateway import GATEWAY_RULES
from evenkeel_contract.validate import SERVICE_RULES, TENANT_RULES
from evenkeel_contract.values import Fault
from evenkeel_operator.core import records
from evenkeel_operator.core.records import choose_spec

from tests.support.crd_boundaries import boundaries
from tests.support.crd_cases import RULES
from tests.support.crd_documents import (
    DOCUMENTS,
    SCALED,
    SERVICE,
    SHARED_SECRET,
    Document,
    changed,
    faults_of,
)
from tests.support.fault_cases import FOUND_BY_THE_OPERATOR
from tests.support.operator_lives import DEFAULTS

RULED: Final = {
    rule.__module__: sys.modules[rule.__module__]
    for rule in (*SERVICE_RULES, *TENANT_RULES, *GATEWAY_RULES)
}
MODULES: Final = (*RULED.values(), values, decode, records)
MAKERS: Final = frozenset({"Fault", "ValueError", "fault"})
SCHEMAS: Final = {
    one["spec"]["names"]["kind"]: one["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for one in definitions().values()
}
STRICT: Final = replace(DEFAULTS, prometheus_urls=("http://allowed",))
# What no API server sends: JSON has no such things.
ODD: Final = (
    changed(SERVICE, {"spec.engine.template.spec": {"a": {1}}}),
    changed(SERVICE, {"spec.engine.template.spec": {1: "a"}}),
    changed(SERVICE, {"spec.engine.template.spec": {"a": {1: "b"}}}),
    changed(SERVICE, {"spec.slo.alertLabels": {1: "a"}}),
)


def cases() -> Iterator[Document]:
    for pair in RULES.values():
        yield changed(pair.base, pair.bad)
    for document in DOCUMENTS:
        for boundary in boundaries(document, SCHEMAS[document["kind"]]):
            yield boundary.outside
    yield SHARED_SECRET
    yield from (document for document, _ in FOUND_BY_THE_OPERATOR.values())
    yield from ODD


def makers(module: ModuleType) -> dict[range, str]:
    """The lines at which a fault is made, and what is made there."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    return {
        range(node.lineno, (node.end_lineno or node.lineno) + 1): ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (getattr(node.func, "id", "") in MAKERS or getattr(node.func, "attr", "") in MAKERS)
    }


# Read as soon as the modules are imported: a file that is formatted during a long run has other lines than the code that runs.
MADE: Final = {module: makers(module) for module in MODULES}


@pytest.fixture
def made_at(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, int]]:
    """Where faults are created from now on: file and line of the code and of its caller."""
    found: set[tuple[str, int]] = set()

    def note() -> None:
        frame: FrameType | None = sys._getframe(2)
        for _ in range(2):  # `decode` makes its faults in a method of its own
            if frame is not None:
                found.add((frame.f_code.co_filename, frame.f_lineno))
                frame = frame.f_back

    plain = Fault.__init__

    def noted(self: Fault, *given: Any, **named: Any) -> None:
        note()
        plain(self, *given, **named)

    monkeypatch.setattr(Fault, "__init__", noted)
    for scalar in (
        values.Duration,
        values.Quantity,
        values.CountOrPercent,
        queueorder.QuantumSetting,
        queueorder.IsolationSetting,
    ):
        monkeypatch.setattr(scalar, "from_plain", _noting(scalar.from_plain, found))
    return found


def _noting(
    read: Callable[[object], object], found: set[tuple[str, int]]
) -> Callable[[object], object]:
    """`read`, and where it raises is noted: `decode` makes a fault of what cannot be read as a scalar."""

    def noted(data: object) -> object:
        try:
            return read(data)
        except ValueError as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            found.add((where.filename, where.lineno or 0))
            raise

    return noted


def judge_all() -> None:
    for case in cases():
        faults_of(case)
        if case["kind"] == "FairInferenceService":
            choose_spec(case, None, STRICT)
    choose_spec(SCALED, None, STRICT)


def test_every_line_that_finds_a_fault_is_reached_by_a_case(made_at: set[tuple[str, int]]) -> None:
    judge_all()
    missed = [
        f"{module.__name__}:{lines.start} {what}"
        for module, made in MADE.items()
        for lines, what in made.items()
        if made_at.isdisjoint((str(module.__file__), line) for line in lines)
        # In status only, which only the operator writes.
        and "is not a time" not in what
    ]
    assert sum(map(len, MADE.values())) > 40
    assert missed == []


@pytest.mark.parametrize(
    ("document", "path"), FOUND_BY_THE_OPERATOR.values(), ids=FOUND_BY_THE_OPERATOR
)
def test_what_only_the_operator_finds_is_found_with_its_path(document: Document, path: str) -> None:
    faults = (
        faults_of(document)
        if document["kind"] == "InferenceTenant"
        else choose_spec(document, None, DEFAULTS).faults
    )
    assert [fault.path for fault in faults] == [path]
