"""Libraries of Debian 11 that the amd-mori binaries link by exact soname; unpacked, never installed.

They come through apt with private lists and the archive's own keyring, so nothing on the machine changes.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .errors import EngineEnvironmentError
from .packages import run

PACKAGES = [
    "libprotobuf23",
    "libgrpc++1",
    "libgrpc10",
    "libabsl20200923",
    "libssl1.1",
    "libc-ares2",
    "libpci3",
    "libnuma1",
    "libdrm2",
    "libdrm-amdgpu1",
]
_RELEASE = "bullseye"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_GONE = (
    f"cannot get Debian's {_RELEASE} libraries, which the amd-mori binaries need: when the mirror has dropped that "
    "release, set UMBRA_DEBIAN_MIRROR to one that still has it"
)


def _mirror() -> str:
    named = os.environ.get("UMBRA_DEBIAN_MIRROR")
    if named:
        return named
    argv: list[str | Path] = ["apt-get", "indextargets", "--format", "$(ORIGIN) $(CODENAME) $(SITE)"]
    listing = run(argv, problem="cannot ask apt for this machine's Debian mirror").splitlines()
    for line in listing:
        origin, codename, site = line.split(" ", 2)
        if origin == "Debian" and codename.isalpha():
            return site
    raise EngineEnvironmentError(
        "apt knows no Debian mirror on this machine: run `apt-get update` first, or set UMBRA_DEBIAN_MIRROR to a mirror"
    )


def unpack_libraries(output: Path, scratch: Path) -> None:
    """Download ``PACKAGES`` and put their shared libraries flat into ``output``.

    Raises:
        EngineEnvironmentError: when the release or a package is no longer served, or apt is missing.
    """
    for folder in ("lists/partial", "cache/archives/partial", "parts", "unpacked"):
        (scratch / folder).mkdir(parents=True)
    (scratch / "status").touch()
    (scratch / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {_mirror()} {_RELEASE} main\n")
    (scratch / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{scratch}/sources.list"; Dir::Etc::sourceparts "{scratch}/parts";\n'
        f'Dir::State::lists "{scratch}/lists"; Dir::State::status "{scratch}/status"; Dir::Cache "{scratch}/cache";\n'
        'APT::Sandbox::User "root"; Acquire::Languages "none"; Acquire::Retries "3";\n'
    )
    env = os.environ | {"APT_CONFIG": str(scratch / "apt.conf")}
    run(["apt-get", "-qq", "update", "-o", "APT::Update::Error-Mode=any"], problem=_GONE, env=env)
    run(["apt-get", "-qq", "download", *PACKAGES], problem=_GONE, env=env, cwd=scratch)
    for package in sorted(scratch.glob("*.deb")):
        run(["dpkg", "-x", package, scratch / "unpacked"], problem=f"cannot unpack {package.name}")
    for library in sorted((scratch / "unpacked").rglob("*.so*")):
        if not (output / library.name).exists():
            shutil.copy2(library, output / library.name, follow_symlinks=True)
