"""pytest fixtures around the CPU engine environment: import them in a conftest.py.

One fork launcher serves the whole session; stores are fresh for each test, since an emptied one cannot be reused.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cpuengine import Environment, environment
from cpuengine.launcher import ForkLauncher
from cpuengine.processes import remove_dead_shared_memory
from cpuengine.store import Store, running_store
from ranklab import RankLab

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def engine_env() -> Iterator[Environment]:
    """The CPU engine environment, built on first use (about a minute); at the end nothing of dead engines is left."""
    yield environment()
    remove_dead_shared_memory()


@pytest.fixture(scope="session")
def fork_launcher(engine_env: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkLauncher]:
    """A process that imported SGLang once; engines start from it in seconds."""
    with ForkLauncher(engine_env, tmp_path_factory.mktemp("engines")) as launcher:
        yield launcher


@pytest.fixture(scope="session")
def rank_lab(
    engine_env: Environment, kit_path: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RankLab]:
    """A process that imported SGLang once; ranks with the real tree and linker, but no model, start from it."""
    with RankLab(engine_env, tmp_path_factory.mktemp("ranks"), kit_path) as lab:
        yield lab


@pytest.fixture
def store(engine_env: Environment) -> Iterator[Store]:
    """An empty store of 256 MiB."""
    with running_store(engine_env) as running:
        yield running


@pytest.fixture(scope="session")
def kit_path(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Import paths of the linker; see ``lay_out_kit``."""
    return lay_out_kit(tmp_path_factory.mktemp("kit"))


def lay_out_kit(folder: Path) -> list[Path]:
    """Return import paths of the linker as the kit lays it out: its package, and metadata with the entry point."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    metadata = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir()
    write_metadata(metadata, project["name"], project["version"])
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return [folder, REPOSITORY / "linker"]


def write_metadata(folder: Path, name: str, version: str) -> None:
    """Write the METADATA by which ``importlib.metadata`` knows a distribution."""
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def linker_arguments(
    address: str,
    settings: dict[str, Any] | None = None,
    *,
    linker: str = "UmbraLinker",
    module: str = "umbra_linker.linker",
) -> list[str]:
    """Return the server arguments that attach a linker to the store at ``address``.

    Unless ``settings`` say otherwise, a lookup may take 5 s: all processes share few cores here, and a test of what
    is restored must not depend on who gets one.
    """
    extra: dict[str, Any] = {"standalone_address": address, "standalone_auto_start": False}
    extra["umbra"] = {"lookupDeadlineMilliseconds": 5000} | (settings or {})
    config = {"linker": linker, "linker_module_path": module, "linker_extra_config": extra}
    return [
        "--enable-unified-cache-external-linker",
        "--unified-cache-external-linker-backend",
        "dynamic",
        "--unified-cache-external-linker-config",
        json.dumps(config),
    ]
