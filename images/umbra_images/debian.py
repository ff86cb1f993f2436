"""A Debian root file system unpacked from packages: nothing is installed, no maintainer script runs."""

import io
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from .errors import ImageError

MULTIARCH = f"{platform.machine()}-linux-gnu"
_MERGED = ("bin", "lib", "lib32", "lib64", "sbin")
# Licence texts stay with what they cover; manuals and translations do not.
_SKIPPED = ("usr/share/man/", "usr/share/locale/", "usr/share/lintian/", "usr/share/info/", "usr/share/pixmaps/")


def unpack(packages: Sequence[str], tree: Path) -> None:
    """Download the packages with apt-get and unpack them below `tree`, with /bin, /lib and /sbin merged into /usr."""
    tree.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tree.parent) as folder:
        argv = [_tool("apt-get"), "download", *packages]
        result = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False, timeout=900)
        if result.returncode != 0:
            reason = (result.stderr.strip().splitlines() or ["no message"])[-1]
            raise ImageError(f"Debian packages could not be fetched ({reason}): run `apt-get update` and try again.")
        for name in _MERGED:
            (tree / "usr" / name).mkdir(parents=True, exist_ok=True)
            (tree / name).symlink_to(f"usr/{name}")
        for package in sorted(Path(folder).glob("*.deb")):
            for entry, content in _entries(package):
                _place(tree, entry, content)
    _bundle_certificates(tree)


def run_python(tree: Path, arguments: Sequence[str]) -> None:
    """Run the interpreter below `tree` with its own libraries, without root and whatever this machine has."""
    libraries = tree / "usr/lib" / MULTIARCH
    loader = next(libraries.glob("ld-linux-*.so.*"))
    argv = [str(loader), "--library-path", str(libraries), str(tree / "usr/bin/python3.11"), "-s", *arguments]
    environment = {"PYTHONHOME": str(tree / "usr"), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=600)
    if result.returncode != 0:
        raise ImageError(f"The unpacked Python failed: {(result.stderr or result.stdout).strip()[-500:]}")


def compile_python(interpreter: Path, folder: Path, path_in_image: str) -> None:
    """Byte-compile everything below `folder` with the interpreter of the tree `interpreter`.

    A non-root container cannot do it, and without it each start compiles anew. Hashes instead of times make the
    files reproducible; unchecked, since the sources never change.
    """
    flags = ["--invalidation-mode", "unchecked-hash", "-q", "-j", "0", "-s", str(folder), "-p", path_in_image]
    run_python(interpreter, ["-m", "compileall", *flags, str(folder)])


def _tool(name: str) -> str:
    if path := shutil.which(name):
        return path
    raise ImageError(f"The images are made from Debian packages and there is no {name}: build them on Debian 12.")


def _entries(package: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    argv = [_tool("dpkg-deb"), "--fsys-tarfile", str(package)]
    data = subprocess.run(argv, capture_output=True, check=False, timeout=300)
    if data.returncode != 0:
        raise ImageError(f"{package.name} could not be unpacked: {data.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(data.stdout)) as tar:
        for entry in tar:
            source = tar.extractfile(entry) if entry.isfile() else None
            yield entry, source.read() if source else b""


def _place(tree: Path, entry: tarfile.TarInfo, content: bytes) -> None:
    name = entry.name.removeprefix("./").rstrip("/")
    if not name or name in _MERGED or f"{name}/".startswith(_SKIPPED):
        return
    if name.startswith("usr/share/doc/") and not (entry.isdir() or name.endswith("/copyright")):
        return
    path = tree / name
    if entry.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if entry.issym():
        path.symlink_to(entry.linkname)
    elif entry.islnk():
        path.hardlink_to(tree / entry.linkname.removeprefix("./"))
    else:
        path.write_bytes(content)
        path.chmod(0o755 if entry.mode & 0o100 else 0o644)


def _bundle_certificates(tree: Path) -> None:
    """Write the bundle that ca-certificates' maintainer script would write."""
    authorities = sorted((tree / "usr/share/ca-certificates").rglob("*.crt"))
    bundle = tree / "etc/ssl/certs/ca-certificates.crt"
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_bytes(b"".join(path.read_bytes() for path in authorities))
    # Where OpenSSL looks by default; the link is otherwise in a package that holds the whole command.
    default = tree / "usr/lib/ssl/cert.pem"
    default.parent.mkdir(parents=True, exist_ok=True)
    default.symlink_to("/etc/ssl/certs/ca-certificates.crt")
