"""Refusing to start where the linker was not tested: versions as data, hooks proven live.

A wrong byte in the cache is a wrong answer to a user, so an unknown SGLang or store client ends the engine at start
with a sentence instead of serving.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

Version = tuple[int, int, int]


class LinkerRefusedError(RuntimeError):
    """The engine must not start with this linker; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class TestedRange:
    """Versions of one distribution that the linker was tested with: ``first <= version < beyond``."""

    distribution: str
    first: Version
    beyond: Version
    remedy: str

    def __str__(self) -> str:
        return f">={'.'.join(map(str, self.first))},<{'.'.join(map(str, self.beyond))}"


TESTED = (
    TestedRange(
        "sglang", (0, 5, 23), (0, 5, 24), "use an engine image with a tested SGLang, or a kit that was tested with it"
    ),
    TestedRange(
        "amd-mori", (1, 2, 4), (1, 2, 5), "use the store and engine images of one tested profile"
    ),
)  # fmt: skip


def parse_version(text: str) -> Version | None:
    """Return the release of ``text``, or None for a pre-release, a development build or no version at all.

    Post releases and local labels (``0.5.23.post1``, ``1.2.4+rocm7.2``) count as their release.
    """
    match = re.fullmatch(r"v?(\d+)\.(\d+)\.(\d+)(?:\.post\d+)?(?:\+[A-Za-z0-9.]+)?", text.strip())
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def require_tested(installed: Mapping[str, str | None], tested: Collection[TestedRange] = TESTED) -> None:
    """Check every distribution of ``tested``.

    Args:
        installed: distribution name to its version, None when it is not installed.
        tested: what to compare with.

    Raises:
        LinkerRefusedError: naming the version found, the range tested and the remedy.
    """
    problems = []
    for entry in tested:
        found = installed.get(entry.distribution)
        version = parse_version(found) if found else None
        if version is None or not entry.first <= version < entry.beyond:
            what = f"{entry.distribution} {found}" if found else f"no {entry.distribution}"
            problems.append(f"found {what}, tested is {entry.distribution}{entry}: {entry.remedy}")
    if problems:
        raise LinkerRefusedError("the Umbra linker refuses to start: " + "; ".join(problems))


def require_hooks(dead: Collection[str]) -> None:
    """Check that every hook is live.

    Args:
        dead: the hook targets that are not.

    Raises:
        LinkerRefusedError: naming them. SGLang itself only logs a failed plugin and would serve without it.
    """
    if dead:
        raise LinkerRefusedError(
            f"the Umbra linker refuses to start: its hooks are not live ({', '.join(sorted(dead))}). Check that the "
            "kit is on PYTHONPATH with its .dist-info, that SGLANG_PLUGINS (when set) names 'umbra', and look in the "
            "engine's log for 'Failed to execute general plugin' or 'Failed to apply hooks'"
        )


def require_one_tokenizer(workers: int) -> None:
    """Check that SGLang runs one tokenizer process, the only kind that it adds middleware to.

    Raises:
        LinkerRefusedError: neither the admin key nor the drain would hold in several.
    """
    if workers != 1:
        raise LinkerRefusedError(
            f"the Umbra linker refuses to start: {workers} tokenizer workers would serve without the admin key and "
            "would not drain; leave out --tokenizer-worker-num"
        )
