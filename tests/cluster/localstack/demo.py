"""The same prompt three times: computed, from the device's cache, and after a flush from the store."""

import time
from dataclasses import dataclass

from localcluster.errors import ClusterError
from localcluster.progress import Progress

from .engine import Answer, Engine, prompt
from .store import PAGE_TOKENS, Store

PROMPT_TOKENS = 320
"""Length of the prompt in whole pages; a few tokens follow, since the last page of a prompt is never all cached."""
STORED_SECONDS = 30.0
"""The engine answers before its linker has put the pages; milliseconds when the machine is idle."""

STORED, READ = "umbra_linker_stored_bytes_total", "umbra_linker_read_bytes_total"


@dataclass(frozen=True)
class Shown:
    """What the three requests of one demonstration used and moved."""

    answers: tuple[Answer, ...]
    pages: tuple[int, int]
    """Pages of the prompt's KV that the store had before the first request and after it, by the store's own word."""
    stored_bytes: int
    """Written to the store meanwhile, by the linker's counter."""
    read_bytes: int
    """Read from the store meanwhile, by the linker's counter."""

    @property
    def restored(self) -> Answer:
        """The answer whose prompt came from the store."""
        return self.answers[-1]

    @property
    def device_tokens(self) -> int:
        """Prompt tokens that the device's cache had, over all requests."""
        return sum(answer.device_tokens for answer in self.answers)

    @property
    def store_tokens(self) -> int:
        """Prompt tokens that came from the store, over all requests."""
        return sum(answer.store_tokens for answer in self.answers)


def demonstrate(engine: Engine, store: Store, progress: Progress) -> Shown:
    """Ask, ask again, flush the device's cache, ask again; and ask the store itself before and after.

    Raises ClusterError when something knew the prompt before, when too little comes from the store, or when the
    restored answer differs.
    """
    asked = prompt(PROMPT_TOKENS + 3)
    longer = [*asked, 11, 12, 13]
    before = store.pages(asked)
    stored, read = engine.metric(STORED), engine.metric(READ)
    with progress.step("first-request", "asking the engine"):
        first = engine.generate(asked)
    if before or first.device_tokens or first.store_tokens:
        raise ClusterError(
            f"{first.device_tokens + first.store_tokens} tokens of a prompt that nobody asked before were in a cache, "
            f"and {before} of its pages in the store: what follows would prove nothing."
        )
    device = engine.generate(longer)
    progress.note(
        f"  first answer after {first.seconds:.1f} s; again with {device.device_tokens} tokens from the device"
    )
    _require(device, "the device's cache", (PROMPT_TOKENS, 0))
    after, whole = _stored_pages(store, asked), PROMPT_TOKENS // PAGE_TOKENS
    progress.note(f"  of the prompt's {whole} pages the store itself says to have {after}, and {before} before")
    if after < whole:
        raise ClusterError(f"The store has only {after} of the prompt's {whole} pages: see the logs.")
    engine.flush()
    restored = engine.generate(longer)
    progress.note(
        f"  flushed, and again in {restored.seconds:.1f} s with {restored.store_tokens} tokens from the store"
    )
    _require(restored, "the store", (0, PROMPT_TOKENS))
    if restored.logprobs != device.logprobs:
        raise ClusterError(f"The restored answer differs: {restored.logprobs} instead of {device.logprobs}.")
    progress.note("  the log probabilities of the restored answer equal those of the device's, bit for bit")
    return Shown(
        (first, device, restored), (before, after), int(engine.metric(STORED) - stored), int(engine.metric(READ) - read)
    )


def _stored_pages(store: Store, asked: list[int]) -> int:
    """Pages of the prompt that the store has, once it has them all or the time is over."""
    end = time.monotonic() + STORED_SECONDS
    while (pages := store.pages(asked)) < PROMPT_TOKENS // PAGE_TOKENS and time.monotonic() < end:
        time.sleep(0.2)
    return pages


def _require(answer: Answer, place: str, expected: tuple[int, int]) -> None:
    """Raises ClusterError unless the prompt came from where it must, in tokens of (device, store)."""
    if (found := (answer.device_tokens, answer.store_tokens)) != expected:
        raise ClusterError(
            f"{PROMPT_TOKENS} tokens of the prompt should come from {place}, and {found[0]} came from the device "
            f"and {found[1]} from the store: see the logs."
        )
