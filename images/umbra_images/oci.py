"""OCI images as files: byte for byte the same output for the same input."""

import hashlib
import io
import json
import platform
import re
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

_MEDIA = "application/vnd.oci.image"
KEPT = 20
"""Cached layers of a kind that stay, the last used ones."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Layer:
    """An uncompressed layer on disk; without compression its digest is also its diff id."""

    path: Path
    digest: str
    size: int


@dataclass(frozen=True)
class Image:
    """Layers and the configuration that a container starts with."""

    name: str
    layers: tuple[Layer, ...]
    entrypoint: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = "0:0"
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """`sha256:...` of the manifest: the identity of the image."""
        return _digest(self._manifest())

    @property
    def tag(self) -> str:
        """`name:<start of the digest>`: a reference that is new whenever the content is."""
        return f"{self.name}:{self.digest.removeprefix('sha256:')[:16]}"

    @property
    def pinned(self) -> str:
        """`name@sha256:...`."""
        return f"{self.name}@{self.digest}"

    def write(self, out: IO[bytes]) -> None:
        """Write an OCI layout as a tar stream, ready for `ctr images import -` or `skopeo copy`."""
        manifest, config = self._manifest(), self._config()
        descriptor = {"mediaType": f"{_MEDIA}.manifest.v1+json", "digest": _digest(manifest), "size": len(manifest)}
        # containerd names the image by the first annotation, other tools by the second.
        reference = {
            **descriptor,
            "annotations": {"io.containerd.image.name": self.tag, _REFERENCE: self.tag.rpartition(":")[2]},
        }
        index = _json({"schemaVersion": 2, "mediaType": f"{_MEDIA}.index.v1+json", "manifests": [reference]})
        with tarfile.open(fileobj=out, mode="w|") as tar:
            _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
            _add(tar, "index.json", index)
            for content in (manifest, config):
                _add(tar, _blob(_digest(content)), content)
            for layer in dict.fromkeys(self.layers):
                entry = tarfile.TarInfo(_blob(layer.digest))
                entry.size = layer.size
                with layer.path.open("rb") as source:
                    tar.addfile(entry, source)

    def _config(self) -> bytes:
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", **self.environment}
        return _json(
            {
                "architecture": _ARCHITECTURES[platform.machine()],
                "os": "linux",
                "config": {
                    "User": self.user,
                    "Entrypoint": list(self.entrypoint),
                    "Env": [f"{name}={value}" for name, value in environment.items()],
                    "Labels": dict(self.labels),
                },
                "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in self.layers]},
            }
        )

    def _manifest(self) -> bytes:
        config = self._config()
        return _json(
            {
                "schemaVersion": 2,
                "mediaType": f"{_MEDIA}.manifest.v1+json",
                "config": {"mediaType": f"{_MEDIA}.config.v1+json", "digest": _digest(config), "size": len(config)},
                "layers": [
                    {"mediaType": f"{_MEDIA}.layer.v1.tar", "digest": layer.digest, "size": layer.size}
                    for layer in self.layers
                ],
            }
        )


_REFERENCE = "org.opencontainers.image.ref.name"


def layer_from_tree(tree: Path, cache: Path, key: str) -> Layer:
    """The layer with everything below `tree`, kept in `cache` under `key`."""
    entries = sorted(path for path in tree.rglob("*"))
    return _write_layer(cache, key, ((str(path.relative_to(tree)), path) for path in entries))


def layer_from_files(
    files: Mapping[str, bytes | Path], cache: Path, key: str, directories: Sequence[str] = ()
) -> Layer:
    """The layer with these files (path in the image -> content or source) and empty directories."""
    parents = {str(parent) for name in files for parent in Path(name).parents if str(parent) != "."}
    named: dict[str, bytes | Path | None] = {**dict.fromkeys({*parents, *directories}), **files}
    return _write_layer(cache, key, sorted(named.items()))


def cached_layer(cache: Path, key: str) -> Layer | None:
    """The layer that an earlier run wrote under this key."""
    try:
        record = json.loads(_record(cache, key).read_text())
        layer = Layer(_file(cache, record["digest"]), record["digest"], record["size"])
    except (OSError, ValueError, KeyError):
        return None
    if not layer.path.exists():
        return None
    with suppress(OSError):
        _record(cache, key).touch()
    return layer


def _file(cache: Path, digest: str) -> Path:
    """Layers are stored by content, so that two builds at once can neither mix nor mismatch file and record."""
    return cache / f"{digest.removeprefix('sha256:')}.tar"


def _record(cache: Path, key: str) -> Path:
    return cache / f"{key}.json"


def _remove_old(cache: Path, key: str) -> None:
    """Remove all but the last `KEPT` used layers of this kind: every change of the code makes new ones."""
    kind = re.compile(rf"{re.escape(key.rpartition('-')[0])}-[0-9a-f]{{16}}\.json")
    records = [path for path in cache.iterdir() if kind.fullmatch(path.name)]
    for path in sorted(records, key=lambda path: path.stat().st_mtime)[:-KEPT]:
        digest = json.loads(path.read_text())["digest"]
        path.unlink(missing_ok=True)
        if not any(digest in other.read_text() for other in cache.glob("*.json")):
            _file(cache, digest).unlink(missing_ok=True)


def _write_layer(cache: Path, key: str, entries: Iterable[tuple[str, bytes | Path | None]]) -> Layer:
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{key}.", dir=cache) as folder:
        temporary = Path(folder) / "layer"
        with tarfile.open(temporary, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name, source in entries:
                _add_entry(tar, name, source)
        with temporary.open("rb") as file:
            digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        layer = Layer(_file(cache, digest), digest, temporary.stat().st_size)
        temporary.rename(layer.path)
        # Last: a layer without its record is written anew.
        record = Path(folder) / "record"
        record.write_text(json.dumps({"digest": layer.digest, "size": layer.size}))
        record.rename(_record(cache, key))
    if "-" in key:
        _remove_old(cache, key)
    return layer


def _add_entry(tar: tarfile.TarFile, name: str, source: bytes | Path | None) -> None:
    """Add one entry owned by root, without times; None is an empty directory."""
    if isinstance(source, bytes):
        _add(tar, name, source)
        return
    entry = tarfile.TarInfo(name)
    if source is None or (source.is_dir() and not source.is_symlink()):
        entry.type = tarfile.DIRTYPE
        entry.mode = 0o1777 if name.endswith("tmp") else 0o755
        tar.addfile(entry)
    elif source.is_symlink():
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, str(source.readlink()), 0o777
        tar.addfile(entry)
    else:
        entry.size = source.stat().st_size
        entry.mode = 0o755 if source.stat().st_mode & 0o100 else 0o644
        with source.open("rb") as content:
            tar.addfile(entry, content)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
