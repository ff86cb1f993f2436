"""Images are the same bytes for the same input, wherever and however often they are made."""

import io
import json
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from localcluster import images
from localcluster.images import Image
from umbra_images import oci
from umbra_images.definitions import Builder


def _bytes(image: Image) -> bytes:
    out = io.BytesIO()
    image.write(out)
    return out.getvalue()


def _layer(cache: Path, content: bytes = b"content") -> oci.Layer:
    return oci.layer_from_files({"etc/file": content}, cache, "key", ("tmp",))


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (Image("example.test/a", (_layer(tmp_path / name),)) for name in ("one", "two"))
    assert _bytes(first) == _bytes(second)
    assert first.digest == second.digest


def test_new_content_gives_a_new_reference(tmp_path: Path) -> None:
    first = Image("example.test/a", (_layer(tmp_path / "one"),))
    assert Image("example.test/a", (_layer(tmp_path / "two", b"other"),)).tag != first.tag
    assert Image("example.test/a", first.layers, user="65532:65532").tag != first.tag


def test_an_archive_is_a_valid_layout(tmp_path: Path) -> None:
    image = Image("example.test/a", (_layer(tmp_path),), entrypoint=("/bin/a",), environment={"A": "1"})
    with tarfile.open(fileobj=io.BytesIO(_bytes(image))) as archive:
        contents = {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
    index = json.loads(contents["index.json"])
    (named,) = index["manifests"]
    assert named["annotations"]["io.containerd.image.name"] == image.tag
    assert named["digest"] == image.digest
    manifest = json.loads(contents["blobs/" + index["manifests"][0]["digest"].replace(":", "/")])
    config = json.loads(contents["blobs/" + manifest["config"]["digest"].replace(":", "/")])
    assert config["config"]["Entrypoint"] == ["/bin/a"]
    assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]
    layer = contents["blobs/" + manifest["layers"][0]["digest"].replace(":", "/")]
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        assert [(entry.name, entry.mode, entry.mtime, entry.uid) for entry in tar] == [
            ("etc", 0o755, 0, 0),
            ("etc/file", 0o644, 0, 0),
            ("tmp", 0o1777, 0, 0),
        ]


def test_a_cached_layer_is_used_and_a_damaged_cache_is_not(tmp_path: Path) -> None:
    layer = _layer(tmp_path)
    assert oci.cached_layer(tmp_path, "key") == layer
    assert oci.cached_layer(tmp_path, "other") is None
    layer.path.unlink()
    assert oci.cached_layer(tmp_path, "key") is None


def test_the_last_used_layers_of_a_kind_stay(tmp_path: Path) -> None:
    keys = [f"kit-{number:016x}" for number in range(oci.KEPT + 2)]
    other = oci.layer_from_files({"file": b"other"}, tmp_path, f"operator-{'0' * 16}")
    for age, key in enumerate(keys[:-1]):
        oci.layer_from_files({"file": key.encode()}, tmp_path, key)
        os.utime(tmp_path / f"{key}.json", (age, age))
    assert oci.cached_layer(tmp_path, keys[1])
    oci.layer_from_files({"file": b"newest"}, tmp_path, keys[-1])
    left = {key for key in keys if oci.cached_layer(tmp_path, key)}
    assert left == {keys[1], *keys[3:]}
    assert oci.cached_layer(tmp_path, f"operator-{'0' * 16}") == other
    assert len(list(tmp_path.glob("*.tar"))) == oci.KEPT + 1


def test_builds_at_the_same_time_do_not_mix(tmp_path: Path) -> None:
    content = b"x" * 3_000_000
    with ThreadPoolExecutor(4) as pool:
        layers = list(pool.map(lambda _: _layer(tmp_path, content), range(8)))
    assert len(set(layers)) == 1
    assert layers[0].path.stat().st_size == layers[0].size


@pytest.mark.kubelet
def test_pause_is_a_static_program() -> None:
    (layer,) = images.pause().layers
    with tarfile.open(layer.path) as tar:
        program = tar.extractfile("pause")
        assert program is not None
        assert program.read(4) == b"\x7fELF"
        assert tar.getmember("pause").mode == 0o755


@pytest.mark.kubelet
def test_the_kit_is_reproducible_from_nothing(tmp_path: Path) -> None:
    assert Builder(tmp_path).kit().digest == images.kit().digest
