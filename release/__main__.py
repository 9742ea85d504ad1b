"""`python -m release`: the artifacts of a release in a folder, and from there into a registry; its version and changelog."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from images.errors import BuildError
from release import changelog, chart, images, provenance, registry, version
from release.errors import ReleaseError
from release.names import ARCHITECTURES, CHART_ARCHIVE, PROVENANCE, ROOT, VERSION
from release.programs import helm, installed, run
from release.seal import seal
from release.signing import Keys


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    try:
        _VERBS[options.verb](options)
    except (ReleaseError, BuildError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    keys = verbs.add_parser("keys", help="make new keys, if there are none")
    building = verbs.add_parser("build", help="build and sign all artifacts")
    building.add_argument("--registry", required=True, help="registry and path of the images")
    for verb in (keys, building):
        verb.add_argument("--keys", type=Path, required=True, help="folder with the keys")
    building.add_argument(
        "--architectures", default=",".join(ARCHITECTURES), help="architectures of the images"
    )
    building.add_argument(
        "--dirty",
        action="store_true",
        help="build from a tree with uncommitted changes, or whose changelog has no date",
    )
    publishing = verbs.add_parser("publish", help="push images and chart to their registry")
    publishing.add_argument(
        "--plain-http", action="store_true", help="the registry has no TLS, such as a local one"
    )
    for verb in (building, publishing):
        verb.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the artifacts")
    dating = verbs.add_parser("date", help="date the version in CHANGELOG.md")
    dating.add_argument("date", help="such as 2026-11-27")
    verbs.add_parser("notes", help="print what CHANGELOG.md says of the version")
    raising = verbs.add_parser("version", help="raise the version everywhere")
    raising.add_argument(
        "to", nargs="?", default=version.next_minor(VERSION), help="default: the next minor version"
    )
    serving = verbs.add_parser("registry", help="serve a registry for trials, until Ctrl-C")
    serving.add_argument("--address", default="localhost:5000", help="host:port")
    serving.add_argument("--folder", type=Path, default=ROOT / "out" / "registry")
    return parser


def _build(options: argparse.Namespace) -> None:
    build(
        options.out,
        registry=options.registry.rstrip("/"),
        keys=Keys(options.keys),
        architectures=options.architectures.split(","),
        dirty=options.dirty,
    )


def _date(options: argparse.Namespace) -> None:
    _CHANGELOG.write_text(changelog.dated(_CHANGELOG.read_text(), VERSION, date=options.date))


def _version(options: argparse.Namespace) -> None:
    opened = changelog.opened(_CHANGELOG.read_text(), options.to)
    version.raise_version(ROOT, VERSION, options.to)
    _CHANGELOG.write_text(opened)


def _registry(options: argparse.Namespace) -> None:
    config = registry.written(options.folder, options.address)
    installed("docker-registry")
    print(f"serving a registry on {options.address}, contents in {options.folder}", flush=True)
    os.execlp("docker-registry", "docker-registry", "serve", config)


_CHANGELOG: Final = ROOT / changelog.FILE
_VERBS: Final[Mapping[str, Callable[[argparse.Namespace], None]]] = {
    "build": _build,
    "date": _date,
    "keys": lambda options: make_keys(Keys(options.keys)),
    "notes": lambda _: print(changelog.notes(_CHANGELOG.read_text(), VERSION), end=""),
    "publish": lambda options: publish(options.out, plain_http=options.plain_http),
    "registry": _registry,
    "version": _version,
}


def build(
    out: Path, *, registry: str, keys: Keys, architectures: Sequence[str], dirty: bool
) -> None:
    """Build everything anew in `out`; raises `ReleaseError`."""
    commit = _commit(dirty)
    from release import sboms  # its library is only in the environment of `make release`

    make_keys(keys)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    print("building wheel and source distribution", flush=True)
    # All times are the commit's: the same tree gives the same bytes.
    time_s = _git("show", "--no-patch", "--format=%ct", commit)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT,
        environment={"SOURCE_DATE_EPOCH": time_s})  # fmt: skip
    # A package index refuses metadata or a description that it cannot show, and never takes a file of that name again.
    run(sys.executable, "-m", "twine", "check", "--strict", *out.iterdir())
    digests = images.build(out, architectures=architectures)
    print("packing the chart", flush=True)
    chart.build(out, registry=registry, digests=digests, keys=keys)
    print("listing the contents (SBOM)", flush=True)
    sboms.build(out)
    seal(
        out,
        keys=keys,
        commit=commit + ("+uncommitted" if dirty else ""),
        parameters={"registry": registry, "architectures": ",".join(architectures)},
    )
    for path in sorted(out.iterdir()):
        print(f"{path.stat().st_size:>12,}  {path.name}")


def make_keys(keys: Keys) -> None:
    """Make keys where there are none."""
    if not keys.exist():
        print(f"making new keys in {keys.folder}: keep them, later releases need them", flush=True)
        keys.make()


def publish(out: Path, *, plain_http: bool) -> None:
    """Push the images and the chart to the registry that they were built for. Run `verify` before."""
    statement = provenance.opened((out / PROVENANCE).read_bytes(), lambda data, signature: True)
    registry = statement["predicate"]["buildDefinition"]["externalParameters"]["registry"]
    images.publish(out, registry, plain_http=plain_http)
    print(f"pushing {registry}/charts/evenkeel", flush=True)
    run(helm(), "push", out / CHART_ARCHIVE, f"oci://{registry}/charts",
        *(["--plain-http"] if plain_http else []))  # fmt: skip


def _commit(dirty: bool) -> str:
    """The commit of the tree. Unless `dirty`, raises `ReleaseError` if it is not that of a release."""
    if not dirty:
        if _git("status", "--porcelain"):
            raise ReleaseError(
                "the tree has uncommitted changes; commit them, or use --dirty to try"
            )
        changelog.notes(_CHANGELOG.read_text(), VERSION)  # which fails for a version without a date
        tags = _git("tag", "--points-at", "HEAD", "--list", "v*").split()
        if tags and f"v{VERSION}" not in tags:
            raise ReleaseError(f"the tag {tags[0]} is not the version {VERSION} of pyproject.toml")
    return _git("rev-parse", "HEAD")


def _git(*arguments: str) -> str:
    return run("git", *arguments, folder=ROOT).decode().strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
