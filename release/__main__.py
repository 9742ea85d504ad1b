"""`python -m release keys | build | publish`: the artifacts of a release in a folder, and from there into a registry."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from release import chart, images, provenance
from release.errors import ReleaseError
from release.names import ARCHITECTURES, CHART_ARCHIVE, PROVENANCE, ROOT
from release.programs import helm, run
from release.seal import seal
from release.signing import Keys


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    try:
        if options.verb == "build":
            build(
                options.out,
                registry=options.registry.rstrip("/"),
                keys=Keys(options.keys),
                architectures=options.architectures.split(","),
                dirty=options.dirty,
            )
        elif options.verb == "keys":
            make_keys(Keys(options.keys))
        else:
            publish(options.out, plain_http=options.plain_http)
    except ReleaseError as error:
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
        "--dirty", action="store_true", help="build from a tree with uncommitted changes"
    )
    publishing = verbs.add_parser("publish", help="push images and chart to their registry")
    publishing.add_argument(
        "--plain-http", action="store_true", help="the registry has no TLS, such as a local one"
    )
    for verb in (building, publishing):
        verb.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the artifacts")
    return parser


def build(
    out: Path, *, registry: str, keys: Keys, architectures: Sequence[str], dirty: bool
) -> None:
    """Build everything anew in `out`; raises `ReleaseError`."""
    from release import sboms  # its library is only in the environment of `make release`

    commit = _commit(dirty)
    make_keys(keys)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    print("building wheel and source distribution", flush=True)
    # All times are the commit's: the same tree gives the same bytes.
    time_s = _git("show", "--no-patch", "--format=%ct", commit)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT,
        environment={"SOURCE_DATE_EPOCH": time_s})  # fmt: skip
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
    if not dirty and _git("status", "--porcelain"):
        raise ReleaseError("the tree has uncommitted changes; commit them, or use --dirty to try")
    return _git("rev-parse", "HEAD")


def _git(*arguments: str) -> str:
    return run("git", *arguments, folder=ROOT).decode().strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
