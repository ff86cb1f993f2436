"""What holds for the tree as a whole: generated files are fresh, layers hold, product text names no test set-up."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from product import ROOT

PRODUCT = [
    path
    for folder in ("operator", "linker", "charts", "crds", "examples", "images")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.is_file() and "__pycache__" not in path.parts
]
SOURCES = [path for path in PRODUCT if path.relative_to(ROOT).parts[0] in ("operator", "linker")]


def test_generated_files_are_fresh() -> None:
    environment = {"PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'linker'}"}
    argv = [sys.executable, "-m", "umbra_operator.codegen", "--check"]
    result = subprocess.run(argv, capture_output=True, text=True, env=environment, cwd="/", check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_import_contracts_hold() -> None:
    executable = Path(sys.executable).with_name("lint-imports")
    environment = {"PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'linker'}"}
    result = subprocess.run(
        [str(executable), "--no-cache"], capture_output=True, text=True, env=environment, cwd=ROOT, check=False
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_names_a_test_set_up(path: Path) -> None:
    assert re.findall(r"(?i)cpu-tiny|cpuengine|\bstub|\bfake|\bmock", path.read_text()) == []


def test_nothing_names_a_place_of_the_machine_it_was_written_on() -> None:
    places = re.compile(r"/root/|/work/|/home/\w|localhost:\d|(?:docker|quay|ghcr|gcr|registry)\.[a-z.]*[a-z]+/")
    found = {str(path.relative_to(ROOT)): hits for path in PRODUCT if (hits := places.findall(path.read_text()))}
    assert found == {}


def test_no_package_shadows_the_standard_module() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()
