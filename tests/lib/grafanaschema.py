"""Grafana's own types of a dashboard, from its package @grafana/schema, asked by the real TypeScript compiler."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from localcluster import cache
from parts import leave_out
from product import ROOT

_LOCK = ROOT / "tests/cluster/tools/grafana"
_FLAGS = ("--noEmit", "--strict", "--skipLibCheck", "--moduleResolution", "bundler", "--module", "esnext")


def faults(dashboards: Mapping[str, str], folder: Path) -> list[str]:
    """What the compiler has against dashboards, JSON by name, as values of Grafana's type; works in an empty folder."""
    for name, text in dashboards.items():
        lines = ('import type { Dashboard } from "@grafana/schema";', f"export const dashboard: Dashboard = {text};")
        (folder / f"{name}.ts").write_text("\n".join(lines))
    (folder / "node_modules").symlink_to(_packages() / "node_modules")
    compiler = ["node", "node_modules/typescript/bin/tsc", *_FLAGS, "--target", "es2022"]
    argv = [*compiler, *(f"{name}.ts" for name in dashboards)]
    result = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    found = result.stdout.splitlines()
    assert bool(found) is (result.returncode != 0), result.stderr
    return found


def _packages() -> Path:
    """Where the locked packages are; fetched the first time."""
    if shutil.which("npm") is None:
        leave_out("grafana", "npm, which brings Grafana's types, is not installed")
    lock = _LOCK / "package-lock.json"
    target = cache.root() / "tools" / f"grafana-{cache.key(lock)}"
    if not cache.complete(target):
        cache.build(target, _fetch)
    return target


def _fetch(temporary: Path) -> None:
    for path in _LOCK.glob("*.json"):
        shutil.copy(path, temporary)
    argv = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    result = subprocess.run(argv, cwd=temporary, capture_output=True, text=True, check=False, timeout=600)
    assert result.returncode == 0, result.stderr
