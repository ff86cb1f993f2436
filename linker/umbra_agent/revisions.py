"""Which launch document the engine is to run: the newest, unless it was refused or never became ready.

/run/umbra/last-good.json remembers across agent restarts the last document that became ready, and the revision
that is held back. It holds argv and environment values and is readable by the agent's user alone.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from umbra_agent.arguments import can_be_parsed, refusal, start_parser
from umbra_agent.disk import read_json, write_json
from umbra_agent.launch import Launch, LaunchError, LaunchFile, compact_document, parse
from umbra_agent.report import say
from umbra_agent.trial import Trial

# A revision whose engine ended this many times in a row before it was ready is given up for the last good one.
UNREADY_EXITS = 3


@dataclass(frozen=True)
class Held:
    """A revision that is not to run, and why: a sentence for /status."""

    revision: str
    reason: str


class Revisions:
    """Follows the document. Use it in the main thread only."""

    def __init__(self, document: Path, kit_root: Path, memory: Path) -> None:
        self.file = LaunchFile(document)
        self.refused = 0
        """How many revisions the engine's parser refused."""
        self._kit_root = kit_root
        self._memory = memory
        self._good, self._held = _remembered(memory)
        self._fallback = self._good
        self._unready_exits = 0
        self._parser: Trial | None = None
        self._parsed: str | None = None
        """The revision that the parser has in hand, or has accepted."""

    @property
    def wanted(self) -> Launch | None:
        """The newest valid document."""
        return self.file.wanted

    @property
    def held(self) -> Held | None:
        """Set while the newest document is held back and another one is to run."""
        wanted, held = self.file.wanted, self._held
        return held if wanted and held and self._fallback and wanted.revision == held.revision else None

    @property
    def target(self) -> Launch | None:
        """What is to run."""
        return self._fallback if self.held else self.file.wanted

    def follow(self) -> bool:
        """Look at the file; True when it holds another valid revision than before."""
        before = self.file.wanted
        self.file.follow(os.environ)
        wanted = self.file.wanted
        if wanted is None or (before is not None and wanted.revision == before.revision):
            return False
        self._unready_exits = 0
        self.cancel()
        self._parsed = None
        if self._held and self._held.revision != wanted.revision:
            self._held, self._fallback = None, self._good
            self._remember()
        return True

    def may_replace(self, running: Launch) -> bool:
        """Whether the target may replace `running`: False while the engine's parser judges it or when it refuses.

        A refused one is held back until the document changes; a parser that gives no answer holds back nothing.
        """
        target = self.target
        if target is None or not can_be_parsed(target):
            return target is not None
        if self._parsed != target.revision:
            self.cancel()
            self._parsed = target.revision
            say(f"The engine's parser judges revision {target.revision}.")
            try:
                self._parser = start_parser(target, self._kit_root)
            except OSError as error:
                say(f"The engine's parser could not be started ({error.strerror}): the revision is taken as it is.")
        if self._parser is None:
            return True
        verdict = self._parser.poll()
        if verdict is None:
            return False
        self._parser = None
        if verdict.accepted is None:
            say(f"The engine's parser gave no answer ({verdict.last_line[:80]}): the revision is taken as it is.")
        if verdict.accepted is not False:
            return True
        self.refused += 1
        sentence = refusal(target, verdict)
        self._hold(
            target,
            running,
            f"Revision {target.revision} is refused by the engine's own parser ({sentence}): correct the arguments. "
            f"Revision {running.revision} is left as it is.",
        )
        return False

    def cancel(self) -> None:
        """Stop judging; the same revision is judged again when it is asked for again."""
        if self._parser is not None:
            self._parser.cancel()
            self._parser = None
            self._parsed = None

    def became_ready(self, launch: Launch) -> None:
        """`launch` serves: it is the one to return to."""
        self._unready_exits = 0
        if self._good != launch:
            self._good = launch
            if self.held is None:
                self._fallback = launch
            self._remember()

    def ended(self, launch: Launch, was_ready: bool) -> bool:
        """The engine of `launch` ended by itself. True when the last good document takes its place from now on."""
        self._unready_exits = 0 if was_ready else self._unready_exits + 1
        good, wanted = self._good, self.file.wanted
        if wanted is None or good is None or launch.revision != wanted.revision or good.revision == launch.revision:
            return False
        if self._unready_exits < UNREADY_EXITS or not (self._kit_root / good.kit).is_dir():
            return False
        self._hold(
            launch,
            good,
            f"Revision {launch.revision} ended {self._unready_exits} times in a row before it was ready: the last good "
            f"revision {good.revision} runs again. Correct the deployment.",
        )
        self._unready_exits = 0
        return True

    def to_handover(self) -> dict[str, Any]:
        """For the agent that replaces this one; the rest is on disk. A question to the parser is asked again."""
        fallback = self._fallback.to_document() if self._fallback and self._held else None
        held = {"revision": self._held.revision, "reason": self._held.reason} if self._held else None
        return {"unreadyExits": self._unready_exits, "refused": self.refused, "held": held, "fallback": fallback}

    def take_over(self, document: dict[str, Any]) -> None:
        """Go on where an earlier agent was."""
        self._unready_exits = int(document["unreadyExits"])
        self.refused = int(document["refused"])
        if document["held"] and document["fallback"]:
            self._held = Held(str(document["held"]["revision"]), str(document["held"]["reason"]))
            self._fallback = parse(compact_document(document["fallback"]))

    def _hold(self, launch: Launch, fallback: Launch, reason: str) -> None:
        say(reason)
        self._held, self._fallback = Held(launch.revision, reason), fallback
        self._remember()

    def _remember(self) -> None:
        held = {"revision": self._held.revision, "reason": self._held.reason} if self._held else None
        if self._good is not None:
            write_json(self._memory, {"good": self._good.to_document(), "held": held})


def _remembered(memory: Path) -> tuple[Launch | None, Held | None]:
    document = read_json(memory)
    if document is None:
        return None, None
    try:
        good = parse(compact_document(document["good"]))
        held = document.get("held")
        return good, Held(str(held["revision"]), str(held["reason"])) if held else None
    except (LaunchError, KeyError, TypeError):
        return None, None
