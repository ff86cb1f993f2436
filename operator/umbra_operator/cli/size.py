"""``umbra size``: which store and which policy pay, from a trace."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from umbra_linker.shape import KDA_HEADS, PAGE_TOKENS, Shape
from umbra_operator.api.base import quantity_bytes
from umbra_operator.cli.deployed import Deployed, Engine, deployed
from umbra_operator.cli.objects import Unusable

DESCRIPTION = "Replays a trace of requests through a model of device and store, with the linker's own policy code."
DRAM = "36Gi,72Gi,145Gi,290Gi,580Gi"
POLICY = "stock,kv-once+touch,adaptive,adaptive+rewrite,infinite"
TOKENS, CHECKPOINTS = 1_140_000, 40
WATERMARKS = (90, 85)
EXAMPLE = "umbra size --trace sessions.tar.xz --dram 36Gi,72Gi,145Gi --policy kv-once+touch,adaptive"


def add_command(commands: Any) -> None:
    """Adds the command to the parser of ``umbra``."""
    parser = commands.add_parser("size", help="choose store and policy from a trace", description=DESCRIPTION)
    parser.epilog = f"Example: {EXAMPLE}"
    add = parser.add_argument
    add("--trace", type=Path, required=True, help="file or folder; docs/reference/trace-format.md names the formats")
    add("--format", default="auto", choices=("auto", "agentx", "mooncake", "umbp", "neutral"))
    add("--skip-bad", action="store_true", help="leave unreadable lines and sessions out, and count them")
    add("--deployment", type=Path, help="file of a K3Deployment: its engine, store and policy are the defaults below")
    add("--profile", type=Path, help="file of the K3Profile, if it is another; alone, its engine is the default below")
    add("--dram", type=_sizes, help=f"sizes of the store ({DRAM})")
    add("--policy", help=f"policies to compare ({POLICY})")
    add("--recency", default="reads", choices=("reads", "writes"), help="what refreshes an object in the store")
    add("--watermarks", type=_watermarks, help="percent: evict above the first, down to the second (90,85)")
    add("--lanes", type=_positive, default=8, help="sessions at a time in a closed loop")
    add("--idle-cap", type=_number, default=60.0, help="seconds that a user thinks at most")
    add("--decode-rate", type=_number, default=100.0, help="tokens a second of one answer")
    add("--device-tokens", type=_positive, help=f"tokens of KV on the device ({TOKENS}, times --dcp)")
    add("--device-checkpoints", type=_positive, help=f"checkpoints there besides running requests' ({CHECKPOINTS})")
    add("--min-requests", type=_positive, default=150, help="shorter sessions are left out")
    add("--seeds", type=_positive, default=4, help="replays of each, with other sessions at other times")
    add("--tensor", type=_positive, help="ranks of the engine (8)")
    add("--dcp", type=_positive, help="decode context parallel size (1)")
    add("--dspark", action="store_true", help="a DSPARK draft stores its KV, too")
    add("--output", default="table", choices=("table", "json", "csv", "html"))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the result; progress goes to the error stream, where it is a terminal."""
    try:
        # numpy, which only this command needs, comes with the extra "sim".
        from umbra_sim.errors import InputError  # noqa: PLC0415
        from umbra_sim.output import as_csv, as_json, as_table  # noqa: PLC0415
        from umbra_sim.page import as_html  # noqa: PLC0415
        from umbra_sim.readers import Format, read  # noqa: PLC0415
        from umbra_sim.sweep import sweep  # noqa: PLC0415
    except ImportError as error:
        print(f"error: {error}; install umbra-operator[sim]", file=sys.stderr)
        return 2
    writers = {"table": as_table, "json": as_json, "csv": as_csv, "html": as_html}
    try:
        said_of_engine = Engine(arguments.tensor, arguments.dcp, arguments.dspark)
        given = deployed(arguments.deployment, arguments.profile, arguments.lanes, said_of_engine)
        policies = _policies(arguments.policy or (given and given.policies) or POLICY, given)
        setup = _setup(arguments, given)
        said = _progress(sys.stderr)
        form = Format(arguments.format)
        trace = read(
            arguments.trace, form, skip_bad=arguments.skip_bad, progress=lambda done: said(f"read {done}", last=False)
        )
        said(f"read {trace.requests} requests, left out {trace.skipped} unreadable lines or sessions", last=True)
        swept = sweep(
            trace,
            policies,
            arguments.dram or (given and given.sizes) or _sizes(DRAM),
            setup,
            arguments.seeds,
            lambda done, of: said(f"replayed {done} of {of}", last=done == of),
        )
    except (InputError, Unusable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    sys.stdout.write(writers[arguments.output](swept))
    return 0


def _policies(names: str, given: Deployed | None) -> Any:
    from umbra_sim.errors import InputError  # noqa: PLC0415
    from umbra_sim.policies import POLICIES  # noqa: PLC0415

    known = {**POLICIES, **({given.policy.name: given.policy} if given and given.policy else {})}
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        raise InputError(f"--policy: {', '.join(map(repr, unknown))} is not one of {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names.split(","))]


def _built_in() -> Any:
    from umbra_sim.simulate import Setup  # noqa: PLC0415

    high, low = WATERMARKS
    return Setup(high_percent=high, low_percent=low, device_tokens=TOKENS, device_checkpoints=CHECKPOINTS)


def _setup(arguments: argparse.Namespace, given: Deployed | None) -> Any:
    from umbra_sim.errors import InputError  # noqa: PLC0415
    from umbra_sim.policies import Recency  # noqa: PLC0415
    from umbra_sim.replay import Load  # noqa: PLC0415
    from umbra_sim.simulate import Setup  # noqa: PLC0415

    base = given.setup if given else _built_in()
    tensor = arguments.tensor or base.shape.tensor
    ways = arguments.dcp or base.shape.decode_context
    draft = arguments.dspark or base.shape.draft
    if KDA_HEADS % tensor:
        raise InputError(f"--tensor {tensor} does not divide the model's {KDA_HEADS} heads")
    if tensor % ways:
        raise InputError(f"--dcp {ways} does not divide --tensor {tensor}")
    if draft and ways > 1:
        raise InputError("a DSPARK draft runs with --dcp 1 only")
    if base.chunk_tokens < PAGE_TOKENS * ways:
        raise InputError(f"--dcp {ways} has pages of {PAGE_TOKENS * ways} tokens, more than a prefill chunk has")
    high, low = arguments.watermarks or (base.high_percent, base.low_percent)
    return Setup(
        shape=Shape(tensor, ways, base.shape.kv_bytes, base.shape.state_bytes, draft),
        load=Load(
            lanes=arguments.lanes,
            idle_cap=arguments.idle_cap,
            decode_rate=arguments.decode_rate,
            min_requests=arguments.min_requests,
        ),
        recency=Recency(arguments.recency),
        high_percent=high,
        low_percent=low,
        # The same memory holds more tokens where more ranks share each context; a deployment's budget counts that.
        device_tokens=arguments.device_tokens or base.device_tokens * ways // base.shape.decode_context,
        device_checkpoints=arguments.device_checkpoints or base.device_checkpoints,
        chunk_tokens=base.chunk_tokens,
    )


def _sizes(text: str) -> list[int]:
    try:
        sizes = sorted({quantity_bytes(part) for part in text.split(",")})
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error} (64GB is 64G, or 64Gi)") from error
    return sizes


def _watermarks(text: str) -> tuple[int, int]:
    high, _, low = text.partition(",")
    if not (high.isdigit() and low.isdigit() and 1 <= int(low) < int(high) <= 100):
        raise argparse.ArgumentTypeError(f"{text!r} is not HIGH,LOW in percent, such as 90,85")
    return int(high), int(low)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _progress(stream: TextIO) -> Callable[..., None]:
    """A line that is written over, at most twice a second; nothing where nobody looks."""
    latest = 0.0

    def say(text: str, *, last: bool) -> None:
        nonlocal latest
        if stream.isatty() and (last or time.monotonic() - latest > 0.5):
            latest = time.monotonic()
            stream.write(f"\r{text}\x1b[K" + ("\n" if last else ""))
            stream.flush()

    return say
