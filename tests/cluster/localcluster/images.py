"""Images of the local cluster: two tiny ones of its own, the product's from `images/`, and how they get in."""

import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from umbra_images import oci
from umbra_images.definitions import Builder
from umbra_images.errors import ImageError
from umbra_images.oci import Image

from . import cache
from .errors import ClusterError
from .layout import Layout

__all__ = ["Image", "base", "kit", "layers", "load", "operator", "pause"]

# The largest image, 250 MB, takes seconds.
CTR_SECONDS = 300.0
REPOSITORY = Path(__file__).resolve().parents[3]
_PAUSE = Path(__file__).with_name("pause.c")
_PASSWD = b"""\
root:x:0:0:root:/root:/sbin/nologin
umbra:x:65532:65532:umbra:/nonexistent:/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin
"""
_GROUP = b"root:x:0:\numbra:x:65532:\nnogroup:x:65534:\n"


def layers() -> Path:
    """Folder of the cached layers."""
    return cache.root() / "layers"


def needed_bytes() -> int:
    """What the disk must have for the layers: 0.3 GB, and meanwhile their contents; nothing when they are there."""
    return 0 if any(layers().glob("wheels-*.json")) else 1024**3 // 2


def pause() -> Image:
    """The sandbox image of every pod: one static program."""
    return Image("umbra.test/pause", (_pause_layer(),), entrypoint=("/pause",))


def base() -> Image:
    """An image with users and empty folders only: its containers bring their tools as hostPath mounts."""
    key = cache.key("base", _PASSWD, _GROUP)
    accounts = {"etc/passwd": _PASSWD, "etc/group": _GROUP, "etc/nsswitch.conf": b"hosts: files dns\n"}
    folders = ("tmp", "var/tmp", "proc", "sys", "dev", "run", "root")
    layer = oci.cached_layer(layers(), key) or oci.layer_from_files(accounts, layers(), key, folders)
    return Image("umbra.test/base", (_pause_layer(), layer), entrypoint=("/pause",))


def operator() -> Image:
    """The operator as it stands in the repository: built in 20 s the first time, in a second after a code change."""
    try:
        return Builder(layers()).operator()
    except ImageError as problem:
        raise ClusterError(str(problem)) from problem


def kit() -> Image:
    """The kit (linker and agent) as it stands in the repository."""
    try:
        return Builder(layers()).kit()
    except ImageError as problem:
        raise ClusterError(str(problem)) from problem


def _pause_layer() -> oci.Layer:
    key = cache.key("pause", _PAUSE)
    if found := oci.cached_layer(layers(), key):
        return found
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "pause"
        argv = ["gcc", "-Os", "-static", "-s", "-Wall", "-Werror", "-o", str(program), str(_PAUSE)]
        result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
        if result.returncode != 0:
            raise ClusterError(
                f"gcc could not build {_PAUSE.name}: {result.stderr.strip()}; install gcc and libc6-dev."
            )
        return oci.layer_from_files({"pause": program}, layers(), key)


def reachable(layout: Layout) -> bool:
    """Whether the cluster's containerd answers."""
    argv = ["ctr", f"--address={layout.containerd_socket}", "--connect-timeout=1s", "version"]
    try:
        return subprocess.run(argv, capture_output=True, check=False, timeout=10).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def load(image: Image, layout: Layout) -> bool:
    """Give the image to the cluster's containerd, by tag and by digest; False when it already has this very content."""
    ctr = ["ctr", f"--address={layout.containerd_socket}", "--namespace=k8s.io", "images"]
    known = subprocess.run(
        [*ctr, "ls", "-q", f"name=={image.pinned}"], capture_output=True, text=True, check=False, timeout=CTR_SECONDS
    )
    if image.pinned in known.stdout.split():
        return False
    argv = [*ctr, "import", "-"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as importer:
        assert importer.stdin is not None
        assert importer.stderr is not None
        bound = threading.Timer(CTR_SECONDS, importer.kill)
        bound.start()
        try:
            # When containerd hangs up, its own message says more than ours.
            with suppress(BrokenPipeError), importer.stdin as out:
                image.write(out)
            message = importer.stderr.read().decode().strip()
        finally:
            bound.cancel()
    if importer.returncode != 0:
        message = message or f"its client was ended after at most {CTR_SECONDS:.0f} s"
        raise ClusterError(f"containerd did not take {image.tag}: {message}; see {layout.log('containerd')}.")
    # Last: this name tells the next call that the whole image is there.
    tagged = subprocess.run(
        [*ctr, "tag", "--force", image.tag, image.pinned],
        capture_output=True,
        text=True,
        check=False,
        timeout=CTR_SECONDS,
    )
    if tagged.returncode != 0:
        raise ClusterError(f"containerd did not name {image.pinned}: {tagged.stderr.strip()}")
    return True
