"""`make crds`: writes the CustomResourceDefinitions, one file each, into this folder and into the chart, and `gitops/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml
from evenkeel_contract.crd import definitions

from crds import kustomize

FOLDERS: Final = (
    Path(__file__).parent,
    Path(__file__).parents[1] / "charts" / "evenkeel" / "files" / "crds",  # Helm reads nothing else
)
_HEADER: Final = "# Generated from contract/evenkeel_contract/spec by `make crds`. Do not edit.\n"


class _Dumper(yaml.SafeDumper):
    """Writes equal values twice instead of an alias, which is hard to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def files() -> dict[str, str]:
    """File name → text, of every definition."""
    return {
        f"{definition['spec']['names']['plural']}.yaml": _HEADER
        + yaml.dump(definition, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
        for definition in definitions().values()
    }


def main() -> None:
    for folder in FOLDERS:
        for name, text in files().items():
            (folder / name).write_text(text, encoding="utf-8")
    for name, text in kustomize.files().items():
        (FOLDERS[0] / "gitops" / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
