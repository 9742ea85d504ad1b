"""Base images where nothing can be pulled: Python and its libraries, unpacked from the machine's own Debian.

In the manner of distroless: no shell, no package manager, no setuid program, one user who is not root. apt works
out what is needed against an empty system, so nothing depends on what happens to be installed here.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from images.commands import run
from images.errors import BuildError, NotHereError

BYTECODE: Final = Path(__file__).with_name("bytecode.py")
_PYTHON: Final = (
    "python3-minimal",
    "libpython3-stdlib",
    "libstdc++6",  # of wheels with compiled parts
    "ca-certificates",
    "netbase",
    "media-types",
    "tzdata",
)
# Needed by packages' scripts, which do not run here.
_UNNEEDED: Final = frozenset({"dpkg", "tar", "debconf", "openssl", "debianutils", "gcc-12-base"})

_CONTAINERFILE: Final = """FROM scratch
ADD root.tar /
ENV PATH=/usr/local/bin:/usr/bin:/bin SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
"""


@dataclass(frozen=True, slots=True)
class Base:
    """One base image."""

    name: str
    packages: tuple[str, ...]
    architecture: str = ""
    """Name of the architecture in Debian and in images, such as arm64; empty for that of this machine."""

    def of(self, architecture: str) -> Base:
        """The same base for another architecture."""
        name, tag = self.name.split(":")
        return replace(self, name=f"{name}-{architecture}:{tag}", architecture=architecture)


RUNTIME: Final = Base("evenkeel.dev/e2e/base:1", _PYTHON)
BUILDER: Final = Base(
    "evenkeel.dev/e2e/builder:1", (*_PYTHON, "dash", "coreutils", "python3", "python3-pip")
)

ENGINE: Final = Base(
    "evenkeel.dev/e2e/engine:1", (*BUILDER.packages, "util-linux")
)  # whose lscpu SGLang asks for the processors


def check_distribution() -> None:
    """Raises `NotHereError` unless this is Debian 12: other packages have other names, places and another Python."""
    found = platform.freedesktop_os_release()
    if (found["ID"], found.get("VERSION_ID")) != ("debian", "12"):
        raise NotHereError(
            f"base images are made of packages of Debian 12, and this is {found['PRETTY_NAME']}: "
            "run it on Debian 12, or in a privileged container of debian:12"
        )


def build(base: Base) -> str:
    """Make sure that the image is in buildah's store; returns a key of what is in it. Raises `BuildError`."""
    check_distribution()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        apt = _apt(folder, base.architecture)
        listed = run(*apt, "--print-uris", "-qq", *base.packages)
        recipe = Path(__file__).read_text() + BYTECODE.read_text()
        key = hashlib.sha256((listed + recipe).encode()).hexdigest()[:16]
        tagged = f"{base.name}-{key}"
        if not run("buildah", "images", "--quiet", "--filter", f"reference={tagged}").strip():
            print(f"building image {base.name} …", flush=True)
            run(*apt, "--download-only", "--yes", "-qq", *base.packages)
            _unpack(folder, foreign=bool(base.architecture))
            (folder / "Containerfile").write_text(_CONTAINERFILE)
            platform = [f"--arch={base.architecture}"] if base.architecture else []
            run("buildah", "build", "--timestamp", "0", *platform, "--tag", tagged, folder)
        run("buildah", "tag", tagged, base.name)
    _forget_older(base, tagged)
    return key


def _forget_older(base: Base, tagged: str) -> None:
    for image in run("buildah", "images", "--format", "{{.Name}}:{{.Tag}}").split():
        if image.startswith(f"{base.name}-") and image != tagged:
            with suppress(BuildError):  # another clone builds with it; a later call removes it
                run("buildah", "rmi", image)


def _apt(folder: Path, architecture: str) -> tuple[str, ...]:
    """`apt-get install` in an empty system; for another architecture with the lists of its packages."""
    (folder / "status").touch()  # as if nothing were installed
    (folder / "debs" / "partial").mkdir(parents=True)
    options: tuple[str, ...] = (
        f"Dir::State::status={folder}/status",
        f"Dir::Cache::archives={folder}/debs",
        "Debug::NoLocking=1",
        "APT::Install-Recommends=0",
        "APT::Sandbox::User=root",  # the folder is ours alone
    )
    if architecture:
        (folder / "lists" / "partial").mkdir(parents=True)
        options += (f"APT::Architecture={architecture}", f"Dir::State::lists={folder}/lists")
    apt = ("apt-get", *(word for option in options for word in ("-o", option)))
    if architecture:
        run(*apt, "update", "-qq")
    return (*apt, "install")


def _unpack(folder: Path, *, foreign: bool) -> None:
    root = folder / "root"
    root.mkdir()
    for package in sorted((folder / "debs").glob("*.deb")):
        if package.name.split("_")[0] not in _UNNEEDED:
            run("dpkg-deb", "--extract", package, root)
            _record(package, root)
    for rest in ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/lintian"):
        run("rm", "-rf", root / rest)
    certificates = sorted((root / "usr/share/ca-certificates/mozilla").glob("*.crt"))
    (root / "etc/ssl/certs").mkdir(parents=True, exist_ok=True)
    together = "".join(one.read_text() for one in certificates)
    (root / "etc/ssl/certs/ca-certificates.crt").write_text(together)
    (root / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532::/tmp:/sbin/nologin\n"
    )
    (root / "etc/group").write_text("root:x:0:\nnonroot:x:65532:\n")
    _compile(root, foreign=foreign)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    run("tar", "--create", "--file", folder / "root.tar", "--directory", root, "--sort=name",
        "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", ".")  # fmt: skip
    run("rm", "-rf", root, folder / "debs")


def _record(package: Path, root: Path) -> None:
    """Name and version of a package, where distroless images have them, and scanners look for them."""
    records = root / "var/lib/dpkg/status.d"
    records.mkdir(parents=True, exist_ok=True)
    (records / package.name.split("_")[0]).write_text(run("dpkg-deb", "--field", package))


def _compile(root: Path, *, foreign: bool) -> None:
    """What Debian's package does after unpacking; without it, every start compiles half the standard library."""
    library = "/usr/lib/python3.11"
    if foreign:  # its Python cannot run here, and that of this machine writes the same bytecode
        if sys.version_info[:2] == (3, 11):
            run("env", "PYTHONHASHSEED=0", sys.executable, BYTECODE, f"{root}{library}", library)
        return
    shutil.copyfile(BYTECODE, root / "bytecode.py")
    run(
        "env",
        "PYTHONHASHSEED=0",
        "chroot",
        root,
        "/usr/bin/python3",
        "/bytecode.py",
        library,
        library,
    )
    (root / "bytecode.py").unlink()
