"""What is stored, touched and written again: the published rules, and properties over random cases."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from umbra_linker.policy import (
    WINDOW_MILLISECONDS,
    Boundary,
    CheckpointPolicy,
    TouchTimes,
    WriteRate,
    boundary,
    keeps_checkpoint,
    leaf_first,
    rewrite,
)
from umbra_linker.settings import Checkpoints

CHUNK = 8192
GIB = 1 << 30
MINUTE = 60_000
LARGEST = 1 << 47


def _kept_chunks(window_ms: int, chunks: int = 12) -> list[int]:
    return [
        number
        for number in range(chunks)
        if keeps_checkpoint(
            Checkpoints.ADAPTIVE, Boundary.CHUNK_END, number * CHUNK, (number + 1) * CHUNK,
            chunk=CHUNK, window_ms=window_ms,
        )
    ]  # fmt: skip


def test_a_checkpoint_is_named_by_where_it_stands_in_the_prompt() -> None:
    assert boundary(8192, 20_000, 64) is Boundary.CHUNK_END
    assert boundary(19_968, 20_000, 64) is Boundary.PROMPT_END
    assert boundary(20_000, 20_000, 64) is Boundary.PROMPT_END
    assert boundary(20_032, 20_000, 64) is Boundary.DECODE_END


def test_each_policy_keeps_what_it_says() -> None:
    def kept(checkpoints: Checkpoints, window_ms: int) -> set[Boundary]:
        return {
            kind for kind in Boundary if keeps_checkpoint(checkpoints, kind, 0, 100, chunk=CHUNK, window_ms=window_ms)
        }

    for window in (0, 20 * MINUTE, 30 * MINUTE):
        assert kept(Checkpoints.ALL, window) == set(Boundary)
        assert kept(Checkpoints.PROMPT_END, window) == {Boundary.PROMPT_END}
    assert kept(Checkpoints.ADAPTIVE, 30 * MINUTE) == {Boundary.PROMPT_END, Boundary.CHUNK_END}
    assert kept(Checkpoints.ADAPTIVE, 30 * MINUTE - 1) == {Boundary.PROMPT_END}


def test_chunk_ends_are_thinned_by_how_long_the_store_keeps_them() -> None:
    assert _kept_chunks(30 * MINUTE) == list(range(12))
    assert _kept_chunks(30 * MINUTE - 1) == [3, 7, 11]
    assert _kept_chunks(15 * MINUTE) == [3, 7, 11]
    assert _kept_chunks(15 * MINUTE - 1) == []


@given(st.lists(st.integers(1, 3 * CHUNK), min_size=1, max_size=60))
def test_kept_chunk_ends_are_never_further_apart_than_five_chunks(lengths: list[int]) -> None:
    """A chunk that a hit or a full batch cut short moves the ends, and one in four chunks' tokens still counts."""
    position = last = 0
    for length in lengths:
        begin, position = position, position + length
        if keeps_checkpoint(
            Checkpoints.ADAPTIVE, Boundary.CHUNK_END, begin, position, chunk=CHUNK, window_ms=20 * MINUTE
        ):
            assert position // (4 * CHUNK) > last // (4 * CHUNK)
            last = position
    assert position - last < 4 * CHUNK + max(lengths)


def test_the_rate_is_an_average_over_the_last_minute() -> None:
    rate = WriteRate()
    for second in range(600):
        rate.add(second * 1000, GIB)
    steady = rate.window_ms(599_000, 145 * GIB)
    assert abs(steady - 145 * 0.8 * 1000) < 0.02 * steady, "0.8 x 145 GiB at 1 GiB/s last 116 s"
    later = rate.window_ms(599_000 + MINUTE, 145 * GIB)
    assert 2.6 < later / steady < 2.9, "a minute without a write is one time constant: a factor of e"


@given(st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 1 << 43)), max_size=80), st.integers(0, LARGEST))
def test_the_rate_fits_64_bits_never_goes_below_zero_and_forgets(
    writes: list[tuple[int, int]], store_bytes: int
) -> None:
    rate, now, total = WriteRate(), 0, 0
    for elapsed, size in writes:
        now, total = now + elapsed, total + size
        rate.add(now, size)
        assert 0 <= rate._level <= total
        assert rate._level + 60 < 1 << 63
        assert store_bytes * 48_000 < 1 << 63
        assert rate.window_ms(now, store_bytes) >= 0
    assert rate.window_ms(now + 1_800_000, store_bytes) == store_bytes * 48_000


@given(st.lists(st.integers(0, 5000), max_size=40), st.integers(1, 1 << 40))
def test_only_whole_seconds_since_the_start_age_the_rate(steps: list[int], size: int) -> None:
    """Asking often does not age it more: ranks and the sizing tool may ask at different moments."""
    often, once, now = WriteRate(), WriteRate(), 0
    often.add(0, size)
    once.add(0, size)
    for step in steps:
        now += step
        often.window_ms(now, GIB)
    assert often.window_ms(now, GIB) == once.window_ms(now, GIB)


def test_a_clock_that_goes_back_stands_still() -> None:
    rate = WriteRate()
    rate.add(100_000, GIB)
    before = rate.window_ms(100_000, 100 * GIB)
    assert rate.window_ms(40_000, 100 * GIB) == before
    assert rate.window_ms(101_000, 100 * GIB) > before


NODES = st.lists(
    st.tuples(
        st.integers(0, 120_000), st.sampled_from(Boundary), st.integers(1, 3 * CHUNK), st.integers(0, 1 << 34),
        st.integers(0, 1 << 34),
    ),
    max_size=60,
)  # fmt: skip


@given(NODES, st.integers(0, LARGEST))
def test_policies_nest_and_a_faster_writer_keeps_no_more(
    nodes: list[tuple[int, Boundary, int, int, int]], store_bytes: int
) -> None:
    policies = {choice: CheckpointPolicy(store_bytes, CHUNK) for choice in Checkpoints}
    now = position = 0
    for elapsed, kind, length, kv_bytes, checkpoint_bytes in nodes:
        now, begin, position = now + elapsed, position, position + length
        every, adaptive, prompt = (
            policies[choice].takes(
                now, choice, kind, begin, position, kv_bytes=kv_bytes, checkpoint_bytes=checkpoint_bytes
            )
            for choice in (Checkpoints.ALL, Checkpoints.ADAPTIVE, Checkpoints.PROMPT_END)
        )
        assert every >= adaptive >= prompt
        assert prompt == (kind is Boundary.PROMPT_END)
        assert not (adaptive and kind is Boundary.DECODE_END)


def test_a_collapse_stops_itself() -> None:
    """Misses write chunk ends, which evict what others need: at a high rate no chunk end is stored any more."""
    policy = CheckpointPolicy(72 * GIB, CHUNK)
    checkpoint, kv = 449_372_160, 128 * 884_736
    taken = [
        policy.takes(
            now * 1000, Checkpoints.ADAPTIVE, Boundary.CHUNK_END, now * CHUNK, (now + 1) * CHUNK,
            kv_bytes=kv, checkpoint_bytes=checkpoint,
        )
        for now in range(120)
    ]  # fmt: skip
    assert taken[0]
    assert not any(taken[30:])


def test_without_a_known_store_nothing_is_thinned() -> None:
    policy = CheckpointPolicy(None, CHUNK)
    for now in range(50):
        assert policy.takes(
            now, Checkpoints.ADAPTIVE, Boundary.CHUNK_END, 0, CHUNK, kv_bytes=1 << 40, checkpoint_bytes=1 << 40
        )


@given(st.lists(st.integers()))
def test_leaf_first_is_the_path_backwards(prefix: list[int]) -> None:
    assert leaf_first(prefix) == prefix[::-1]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5000)), max_size=80), st.integers(1, 9), st.integers(1, 9000)
)
def test_a_node_is_touched_once_an_interval_unless_it_was_forgotten(
    asked: list[tuple[int, int]], most: int, interval: int
) -> None:
    times, now = TouchTimes(most), 0
    touched: dict[int, int] = {}
    for node, elapsed in asked:
        now += elapsed
        recent = sorted(touched, key=lambda known: touched[known])[-most:]
        due = times.due(node, now, interval)
        if due:
            touched.pop(node, None)
            touched[node] = now
        else:
            assert node in touched
            assert now - touched[node] < interval
        if node not in touched or (len(recent) < most and now - touched[node] >= interval):
            assert due


def test_touch_times_forget_the_oldest_and_all() -> None:
    times = TouchTimes(2)
    assert [times.due(node, 0, 30_000) for node in (1, 2, 3)] == [True] * 3
    assert times.due(1, 1, 30_000), "node 1 was forgotten"
    assert not times.due(3, 29_999, 30_000)
    assert times.due(3, 30_000, 30_000)
    times.clear()
    assert times.due(3, 30_001, 30_000)


@given(st.lists(st.booleans(), max_size=40), st.sampled_from([True, False, None]))
def test_what_a_touch_found_missing_is_written_leaf_first(present: list[bool], checkpoint: bool | None) -> None:
    plan = rewrite(present, checkpoint)
    assert list(plan.pages) == [page for page in reversed(range(len(present))) if not present[page]]
    assert plan.checkpoint == (checkpoint is False)
    assert bool(plan) == (not all(present) or checkpoint is False)


def test_the_window_is_the_published_half_hour() -> None:
    assert WINDOW_MILLISECONDS == 30 * MINUTE
