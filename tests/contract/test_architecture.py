"""ARCHITECTURE.md is a map of the tree: every module of the product stands in it, once, and nothing that is gone."""

import re
from collections import Counter

from product import ROOT

FOLDERS = ("operator/umbra_operator", "linker", "images/umbra_images")


def test_the_file_map_names_every_module_once() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text().split("## File map")[1]
    for folder in FOLDERS:
        section = text.split(f"**`{folder}/`**")[1].split("**`")[0]
        named = Counter(re.findall(r"`([\w/]+\.py)`", section))
        modules = {
            str(path.relative_to(ROOT / folder)) for path in (ROOT / folder).rglob("*.py") if path.name != "__init__.py"
        }
        assert {name for name, times in named.items() if times > 1} == set()
        assert set(named) == modules


def test_links_between_pages_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_the_readme_shows_the_example_as_it_is() -> None:
    shown = re.search(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown
    assert (ROOT / "examples/k3-mi355x.yaml").read_text().endswith(shown[1])


def test_no_page_waits_for_a_figure() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert [page.name for page in pages if re.search(r"@[A-Z]+@", page.read_text())] == []
