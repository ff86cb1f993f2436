"""Objects of many tasks share calls, no object is cut, and a lost one fails the task that it belongs to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbra_linker.batch import ObjectBatch, spans

TASKS = st.lists(st.integers(0, 9), min_size=1, max_size=8)
"""How many objects each task has."""


def batch_of(tasks: list[int], ranges: int = 1) -> ObjectBatch:
    """A batch with ``tasks[i]`` objects of task i, each of ``ranges`` ranges."""
    batch = ObjectBatch("kv", per_page=1)
    for owner, objects in enumerate(tasks):
        part = [[1] * ranges] * objects
        batch.add(owner, [f"{owner}/{i}" for i in range(objects)], [ranges] * objects, (part, part, part))
    return batch


@given(st.integers(0, 200), st.integers(1, 50))
def test_spans_cover_everything_once_in_order(total: int, step: int) -> None:
    cut = spans(total, step)
    assert [index for span in cut for index in range(total)[span]] == list(range(total))
    assert all(span.stop - span.start <= step for span in cut)


@given(TASKS, st.integers(1, 20), st.integers(1, 40), st.integers(1, 5))
def test_calls_keep_their_bounds_and_cut_no_object(tasks: list[int], objects: int, most: int, ranges: int) -> None:
    batch = batch_of(tasks, ranges)
    cut = batch.spans(most_objects=objects, most_ranges=most)
    assert [key for span in cut for key in batch.keys[span]] == batch.keys
    for span in cut:
        count = span.stop - span.start
        assert count <= objects
        assert count * ranges <= most or count == 1


@given(TASKS, st.data())
def test_a_failed_object_fails_its_own_task_only(tasks: list[int], data: st.DataObject) -> None:
    batch = batch_of(tasks)
    answers = data.draw(st.lists(st.booleans(), min_size=len(batch.keys), max_size=len(batch.keys)))
    lost = {int(key.split("/")[0]) for key, answer in zip(batch.keys, answers, strict=True) if not answer}
    assert batch.failed_owners(answers) == lost


def test_ranges_that_do_not_belong_together_are_refused_whole() -> None:
    batch = batch_of([2])
    with pytest.raises(ValueError, match="pool kv: 2 keys, 1 sizes"):
        batch.add(1, ["a", "b"], [1], ([[1]], [[1]], [[1]]))
    assert len(batch.keys) == len(batch.owners) == 2
