"""What is in the operator image and in the kit image."""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import debian, oci
from .builds import build, key
from .errors import ImageError

REPOSITORY = Path(__file__).resolve().parents[2]
REGISTRY = "umbra.test"
USER = "65532:65532"

_PACKAGES = REPOSITORY / "images" / "debian-packages.txt"
_REQUIREMENTS = REPOSITORY / "requirements" / "operator.txt"
# Code that decides what a layer looks like, beside its inputs.
_SOURCES = (Path(oci.__file__), Path(debian.__file__))
_TREE = "tree"
_WHEELS, _CODE = "opt/umbra/lib", "opt/umbra/code"
_ACCOUNTS = {
    "etc/passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\numbra:x:65532:65532:umbra:/:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\numbra:x:65532:\n",
}
# Wheels for the C library of Debian 12 (glibc 2.36), whatever machine builds the image.
_PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28", "manylinux_2_34")


@dataclass(frozen=True)
class Builder:
    """Builds images; layers whose inputs did not change come from `cache`."""

    cache: Path
    registry: str = REGISTRY

    def operator(self) -> oci.Image:
        """The operator: Python, the locked wheels, its code and the linker's settings and sizes."""
        code = self._code_layer("operator", _CODE, ("operator/umbra_operator", "linker/umbra_linker"))
        return oci.Image(
            f"{self.registry}/operator",
            (self._python(), self._wheels(), code),
            entrypoint=("/usr/bin/python3", "-m", "umbra_operator"),
            environment={"PYTHONPATH": f"/{_CODE}:/{_WHEELS}", "PYTHONUNBUFFERED": "1"},
            user=USER,
            labels=_labels("operator"),
        )

    def kit(self) -> oci.Image:
        """The kit: Python, and linker and agent in the folder that the kit container copies into the pod."""
        folder = f"opt/umbra/kit/{project()['version']}"
        return oci.Image(
            f"{self.registry}/kit",
            (self._python(), self._code_layer("kit", folder, ("linker/umbra_linker", "linker/umbra_agent"))),
            entrypoint=("/usr/bin/python3", "-m", "umbra_agent"),
            environment={
                "PYTHONPATH": f"/{folder}",
                "UMBRA_KIT_SOURCE": f"/{folder}",
                "PYTHONUNBUFFERED": "1",
            },
            user=USER,
            labels=_labels("kit"),
        )

    def _python(self) -> oci.Layer:
        base = self._python_base()
        return oci.cached_layer(self.cache, base.name) or oci.layer_from_tree(base / _TREE, self.cache, base.name)

    def _python_base(self) -> Path:
        """The unpacked and byte-compiled Python base; it stays in the cache to compile the other layers with."""

        def make(temporary: Path) -> None:
            tree = temporary / _TREE
            debian.unpack(_lines(_PACKAGES), tree)
            for name, text in _ACCOUNTS.items():
                (tree / name).write_text(text)
            (tree / "usr/bin/python3").symlink_to("python3.11")
            debian.compile_python(tree, tree / "usr/lib/python3.11", "/usr/lib/python3.11")

        inputs = key(_PACKAGES, *_SOURCES, *_ACCOUNTS.values(), debian.MULTIARCH)
        return build(self.cache / f"python-{inputs}", make)

    def _wheels(self) -> oci.Layer:
        base = self._python_base()
        name = f"wheels-{key(_REQUIREMENTS, base.name)}"
        if found := oci.cached_layer(self.cache, name):
            return found
        with tempfile.TemporaryDirectory(dir=self.cache) as folder:
            target = Path(folder) / _WHEELS
            _install(_REQUIREMENTS, target)
            debian.compile_python(base / _TREE, target, f"/{_WHEELS}")
            return oci.layer_from_tree(Path(folder), self.cache, name)

    def _code_layer(self, name: str, folder: str, packages: tuple[str, ...]) -> oci.Layer:
        """Our own code at `folder` in the image, with the metadata that entry points are found by."""
        files: dict[str, bytes | Path] = dict(_metadata(folder))
        for package in packages:
            root = REPOSITORY / package
            for path in sorted(root.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    files[f"{folder}/{path.relative_to(root.parent)}"] = path
        base = self._python_base()
        contents = (part for item in sorted(files.items()) for part in item)
        layer = f"{name}-{key(*contents, base.name)}"
        if found := oci.cached_layer(self.cache, layer):
            return found
        with tempfile.TemporaryDirectory(dir=self.cache) as temporary:
            for path_in_image, content in files.items():
                target = Path(temporary) / path_in_image
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content if isinstance(content, bytes) else content.read_bytes())
            debian.compile_python(base / _TREE, Path(temporary) / folder, f"/{folder}")
            return oci.layer_from_tree(Path(temporary), self.cache, layer)


def project() -> dict[str, Any]:
    """The `project` table of pyproject.toml: name, version, entry points."""
    table: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return table


def _metadata(folder: str) -> dict[str, bytes]:
    """What an installed distribution has beside its packages, as far as importlib.metadata needs it."""
    about = project()
    lines = []
    for group, points in about.get("entry-points", {}).items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items()), ""]
    info = f"{folder}/{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    head = f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n"
    return {f"{info}/METADATA": head.encode(), f"{info}/entry_points.txt": "\n".join(lines).encode()}


def _labels(name: str) -> dict[str, str]:
    about = project()
    prefix = "org.opencontainers.image"
    return {
        f"{prefix}.title": f"umbra-{name}",
        f"{prefix}.description": str(about["description"]),
        f"{prefix}.version": str(about["version"]),
        f"{prefix}.licenses": str(about["license"]),
    }


def _install(requirements: Path, target: Path) -> None:
    """Install the locked wheels into a folder; whatever is not the locked file, by hash, is refused."""
    platforms = [flag for name in _PLATFORMS for flag in ("--platform", f"{name}_{platform.machine()}")]
    argv = [
        sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile",
        "--no-deps", "--require-hashes", "--only-binary=:all:", "--implementation", "cp", "--python-version", "3.11",
        *platforms, "--target", str(target), "-r", str(requirements),
    ]  # fmt: skip
    environment = {**os.environ, "PIP_ROOT_USER_ACTION": "ignore"}
    result = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=900)
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or ["no message"])[-1]
        if "No module named pip" in reason:
            reason = f"{sys.executable} has no pip; install it (Debian: apt-get install python3-pip)"
        raise ImageError(f"The wheels of {requirements.name} could not be installed: {reason}")
    # Scripts carry the path of this machine's interpreter and RECORD the hashes of those scripts.
    shutil.rmtree(target / "bin", ignore_errors=True)
    for record in target.glob("*.dist-info/RECORD"):
        record.unlink()


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
