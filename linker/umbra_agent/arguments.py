"""Has the engine's own parser judge a new command line before the running engine is stopped for it."""

import os
from pathlib import Path

from umbra_agent.launch import Launch, child_environment
from umbra_agent.report import bounded
from umbra_agent.trial import ACCEPTED, REFUSED, Trial, Verdict

ENGINE_MODULE = "sglang.launch_server"
LIMIT_SECONDS = 120.0
# Words of a log line that are at least this long and stand in the launch document are taken out of what we show.
SHORTEST_SECRET = 4

_SCRIPT = f"""
import sys
from sglang.srt.server_args import prepare_server_args
verdict = "{REFUSED}"
try:
    prepare_server_args(sys.argv[1:])
    verdict = "{ACCEPTED}"
except SystemExit as end:
    if not end.code:
        verdict = "{ACCEPTED}"
except Exception as error:
    print(str(error) or type(error).__name__, flush=True)
sys.stderr.flush()
print()
print(verdict, flush=True)
"""


def can_be_parsed(launch: Launch) -> bool:
    """Whether the command line is one whose parser we know: `<python> -m sglang.launch_server ...`."""
    return launch.argv[1:3] == ("-m", ENGINE_MODULE)


def start_parser(launch: Launch, kit_root: Path, seconds: float = LIMIT_SECONDS) -> Trial:
    """Start the parser in the environment that the engine would get. Raises OSError.

    Cost, measured with SGLang 0.5.23 on CPU: 517 MB of resident memory and about 4 s of processor time (20 s of wall
    clock on a machine with five busy processes per core), at the lowest priority and as the first victim of the
    out-of-memory killer, while the old engine serves. It loads no weights and does not resolve the arguments against
    the hardware: what only resolution refuses (a memory fraction that does not fit) still shows at the start.
    """
    argv = [launch.argv[0], "-c", _SCRIPT, *launch.argv[3:]]
    return Trial(argv, child_environment(os.environ, launch, kit_root), seconds)


def refusal(launch: Launch, verdict: Verdict) -> str:
    """The parser's own last sentence, without the values of arguments and variables."""
    return bounded(redacted(verdict.last_line or "no reason was given", values(launch), 1), 240)


def values(launch: Launch) -> frozenset[str]:
    """Every value in the document's argv and environment; names of flags and variables are no secrets."""
    found = set(launch.env.values())
    for argument in launch.argv:
        name, equals, value = argument.partition("=")
        if not argument.startswith("-"):
            found.add(argument)
        elif equals and name.startswith("--"):
            found.add(value)
    return frozenset(found - {""})


def redacted(text: str, secrets: frozenset[str], shortest: int = SHORTEST_SECRET) -> str:
    """`text` with each occurrence of a secret of at least `shortest` characters that stands alone replaced by `...`.

    Alone: not inside a longer word, so that the value 1 does not take the digits out of every number.
    """
    for value in sorted(secrets, key=len, reverse=True):
        if len(value) >= shortest:
            text = _replace_word(text, value)
    return text


def _replace_word(text: str, word: str) -> str:
    begin = 0
    while (found := text.find(word, begin)) >= 0:
        end = found + len(word)
        before, after = text[found - 1 : found], text[end : end + 1]
        inside = (before.isalnum() and word[0].isalnum()) or (after.isalnum() and word[-1].isalnum())
        if inside:
            begin = found + 1
        else:
            text = text[:found] + "..." + text[end:]
            begin = found + 3
    return text
