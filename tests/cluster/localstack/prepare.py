"""What a machine needs before a cluster starts: free checks first, then everything that is built, at the same time."""

import concurrent.futures
from collections.abc import Sequence
from typing import Any

import cpuengine
from cpuengine.cache import needed_bytes
from cpuengine.packages import find_interpreter
from localcluster import cluster, disk, golang, images, machine, process, python, toolchain
from localcluster.layout import layout
from localcluster.progress import Progress
from umbra_images import cachefolder


def prepare(progress: Progress) -> cpuengine.Environment:
    """Builds Kubernetes, the images and the engine's environment; quick when all are there.

    One waits for downloads while another compiles, so together they take little longer than the longest.
    The first failure ends the others. Raises ClusterError or EngineEnvironmentError.
    """
    where = layout()
    cluster.refuse_another_mode(where, api_only=False)
    machine.check_rights()
    golang.check_go()
    find_interpreter()
    python.interpreter()
    needed = {"the engine": needed_bytes(cachefolder.writable()), "the images": images.needed_bytes()}
    disk.require(where.directory, cluster.needed_bytes(where) | needed)
    machine.install_packages(progress)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        environment = pool.submit(cpuengine.environment)
        every: list[concurrent.futures.Future[Any]] = [
            environment,
            pool.submit(toolchain.kubernetes, progress),
            pool.submit(_images, progress),
        ]
        try:
            for built in concurrent.futures.as_completed(every):
                built.result()
        except BaseException:
            _end(every)
            raise
        return environment.result()


def _end(builds: Sequence[concurrent.futures.Future[Any]]) -> None:
    """Ends what the builds run, again and again, since one of them may be about to start its next command."""
    cachefolder.abandon()
    for _ in range(150):
        process.end_children()
        if not concurrent.futures.wait(builds, timeout=0.2).not_done:
            return


def _images(progress: Progress) -> None:
    with progress.step("image-layers", "making the operator and kit images"):
        images.base()
        images.operator()
        images.kit()
