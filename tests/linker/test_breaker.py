"""A store that answers late is left alone, and asked again after growing pauses."""

from __future__ import annotations

from umbra_linker.breaker import Breaker
from umbra_linker.pauses import FIRST_SECONDS, LAST_SECONDS


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def pause(breaker: Breaker, clock: Clock) -> float:
    """Seconds until the breaker wants to look."""
    begin = clock.now
    while not breaker.due():
        clock.now += 0.5
        assert clock.now < begin + 2 * LAST_SECONDS
    return clock.now - begin


def test_it_opens_with_the_first_late_answer_and_closes_only_when_mended() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    assert not breaker.open
    assert not breaker.due(), "a closed one looks for nothing"
    breaker.late()
    assert breaker.open
    assert not breaker.due()
    assert pause(breaker, clock) == FIRST_SECONDS
    assert breaker.open
    breaker.mend()
    assert not breaker.open
    assert not breaker.due()


def test_pauses_double_while_trials_are_late_and_begin_anew_after_an_answer() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    pauses = []
    for _ in range(8):
        breaker.late()
        pauses.append(pause(breaker, clock))
        breaker.mend()
    assert pauses == [1, 2, 4, 8, 16, LAST_SECONDS, LAST_SECONDS, LAST_SECONDS]
    breaker.answered()
    breaker.late()
    assert pause(breaker, clock) == FIRST_SECONDS
