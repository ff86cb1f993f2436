"""The memory of stored pages is bounded and forgets the oldest first."""

from hypothesis import given
from hypothesis import strategies as st

from umbra_linker.recent import RecentPages


@given(st.lists(st.text(max_size=8), max_size=60), st.integers(1, 20))
def test_it_remembers_the_last_pages(pages: list[str], capacity: int) -> None:
    recent = RecentPages(capacity)
    for page in pages:
        recent.add([page])
    first_seen = list(dict.fromkeys(pages))
    assert len(recent) <= capacity
    if len(first_seen) <= capacity:
        assert all(page in recent for page in first_seen)
    if pages:
        assert pages[-1] in recent or pages[-1] in pages[:-1]


def test_the_oldest_is_forgotten() -> None:
    recent = RecentPages(2)
    recent.add(["a", "b", "c"])
    assert [page in recent for page in "abc"] == [False, True, True]
