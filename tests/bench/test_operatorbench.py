"""The page about the operator's speed."""

from figures import REPOSITORY
from operatorbench import BEGIN, END, PAGE, TARGETS, page

MACHINE = {"cores": 2, "cpu": "some CPU", "memoryGiB": 24}
DOCUMENT = {
    "commit": "abc",
    "machine": MACHINE,
    "figures": [
        {"name": "restart_writes", "value": 0, "unit": "writes"},
        {"name": "edit_cpu_ms", "value": 12.5, "unit": "ms"},
    ],
}


def test_the_table_is_written_between_the_marks_and_the_rest_stays() -> None:
    written = page(f"before\n{BEGIN}\nold\n{END}\nafter\n", DOCUMENT)
    assert written.startswith(f"before\n{BEGIN}\n") and written.endswith(f"\n{END}\nafter\n")
    assert "| `restart_writes` | 0 writes | 0 writes |" in written
    assert "| `edit_cpu_ms` | 12.5 ms |  |" in written
    assert "old" not in written
    assert page(written, DOCUMENT) == written


def test_the_page_tells_each_figure_that_has_a_target() -> None:
    text = PAGE.read_text()
    assert PAGE.is_relative_to(REPOSITORY / "docs")
    assert [name for name in TARGETS if f"| `{name}` |" not in text] == []
