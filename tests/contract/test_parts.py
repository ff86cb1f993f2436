"""A part that cannot run is never passed over in silence."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SKIP = re.compile(r"pytest\.(skip|importorskip|mark\.skip)")


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize(("ci", "code", "outcome"), [("", 0, "1 skipped"), ("true", 1, "1 error")])
def test_a_missing_part_is_named_and_fails_in_ci(
    tmp_path: Path, ci: str, code: int, outcome: str, workers: str
) -> None:
    # Without a PATH there is no Go, hence no API server.
    environment = {**os.environ, "PATH": str(tmp_path), "CI": ci}
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-n",
        workers,
        "tests/contract/test_rules.py::test_the_role_is_immutable",
    ]
    result = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == code, result.stdout
    assert re.search(rf"{outcome}|{outcome}s", result.stdout)
    assert "parts that this machine cannot run" in result.stdout
    assert re.search(r"^apiserver +1 tests  .*Go 1\.26 or later", result.stdout, re.MULTILINE)


def test_nothing_is_left_out_but_through_the_parts() -> None:
    own = {ROOT / "tests/lib/parts.py", Path(__file__).resolve()}
    found = [path for path in (ROOT / "tests").rglob("*.py") if path not in own and SKIP.search(path.read_text())]
    assert found == [], "parts.leave_out(part, reason) skips here and fails in CI"
