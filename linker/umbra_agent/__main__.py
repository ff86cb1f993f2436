"""Command line of the agent: `python3 -m umbra_agent kit|preflight|store|engine`.

Exit codes: 0 done, or stopped as asked; 1 a required preflight check failed, the kit could not be installed or is not
in place (`--check`); 2 wrong usage; the store mode ends with the server's own code, 128 + signal, or 126/127 when the
server cannot be started.
"""

import argparse
import os
import sys
from pathlib import Path

import umbra_agent

TERMINATION_LOG = Path("/dev/termination-log")


def main(arguments: list[str] | None = None) -> int:
    """Run one mode and return the process's exit code. Raises SystemExit(2) on wrong usage."""
    pin_import_path()
    given = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(given)
    if getattr(options, "rehearse", None) is not None:
        return rehearse(options.mode)
    options.rest = own_arguments(given)
    match options.mode:
        case "kit":
            return kit_mode(options)
        case "preflight":
            from umbra_agent import preflight

            return preflight.run(os.environ.get("UMBRA_PREFLIGHT", ""), options.termination_log)
        case "store":
            return store_mode(options)
        case _:
            return engine_mode(options)


def pin_import_path() -> None:
    """Resolve the links in the import paths once: `current` may lead to a newer kit later; modules must not mix."""
    sys.path[:] = [os.path.realpath(entry) if entry else entry for entry in sys.path]
    umbra_agent.__path__ = [os.path.realpath(entry) for entry in umbra_agent.__path__]


def rehearse(mode: str) -> int:
    """Load all that `mode` needs and say that an agent may replace itself by this one."""
    from umbra_agent import engine, store, trial

    print(trial.ACCEPTED if mode in (engine.MODE, store.MODE) else trial.REFUSED, flush=True)
    return 0


def own_arguments(given: list[str]) -> tuple[str, ...]:
    """The command line after the mode, without the handover that is only for this process."""
    rest = given[1:]
    return tuple(rest[2:] if rest[:1] == ["--handover"] else rest)


def kit_mode(options: argparse.Namespace) -> int:
    """Install the kit and sleep, or check that it is in place."""
    from umbra_agent import kit

    source = Path(options.source).resolve()
    if options.check:
        return 0 if kit.in_place(source, options.root) else 1
    try:
        return kit.run(source, options.root)
    except (kit.KitError, OSError) as error:
        print(f"umbra-agent: {error}", file=sys.stderr)
        return 1


def store_mode(options: argparse.Namespace) -> int:
    """Supervise the store server given after `--`."""
    from umbra_agent import store

    argv = options.argv[1:] if options.argv[:1] == ["--"] else options.argv
    if not argv:
        parser().error("store needs the server's command line after --")
    return store.run(
        store.StoreOptions(
            argv=tuple(argv),
            socket=options.socket,
            boot_id=options.boot_id,
            termination_log=options.termination_log,
            bind=options.bind,
            port=options.port,
            stop_seconds=options.stop_seconds,
            kit_root=options.kit_root,
            run_dir=options.run_dir,
            rest=options.rest,
            handover=options.handover,
        )
    )


def engine_mode(options: argparse.Namespace) -> int:
    """Supervise the engine that the launch document asks for."""
    from umbra_agent import engine, supervisor

    return engine.run(
        engine.EngineOptions(
            supervisor=supervisor.SupervisorOptions(
                document=options.document,
                kit_root=options.kit_root,
                drain_flag=options.drain_flag,
                run_dir=options.run_dir,
                store_port=None if options.without_store else options.store_port,
                rest_seconds=options.rest_seconds,
                lame_duck_seconds=options.lame_duck_seconds,
                drm=options.drm,
                dri=options.dri,
                gpu_memory_seconds=options.gpu_memory_seconds,
            ),
            boot_id=options.boot_id,
            termination_log=options.termination_log,
            bind=options.bind,
            port=options.port,
            rest=options.rest,
            handover=options.handover,
        )
    )


def parser() -> argparse.ArgumentParser:
    """The command line; every default is the path or port of the pod that the operator renders."""
    root = argparse.ArgumentParser(prog="umbra_agent", description="Supervisor of the engine and of the cache store.")
    modes = root.add_subparsers(dest="mode", required=True, metavar="MODE")
    _add_kit(modes)
    _add_preflight(modes)
    _add_store(modes)
    _add_engine(modes)
    return root


def _add_kit(modes: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    mode = modes.add_parser("kit", help="copy this kit into the pod and sleep", description="Copy the kit and sleep.")
    source = os.environ.get("UMBRA_KIT_SOURCE") or str(Path(__file__).resolve().parents[1])
    mode.add_argument("--source", default=source, help="folder named like the version (default: UMBRA_KIT_SOURCE)")
    mode.add_argument("--root", type=Path, default=Path("/umbra"), help="where the versions go (default: %(default)s)")
    mode.add_argument("--check", action="store_true", help="exit 0 when this version is current, else 1; copy nothing")


def _add_preflight(modes: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    mode = modes.add_parser(
        "preflight",
        help="check the node and the image, then end",
        description="Check node and image against the JSON in UMBRA_PREFLIGHT; exit 1 when a required check fails.",
    )
    _add_termination(mode)


def _add_store(modes: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    mode = modes.add_parser(
        "store",
        help="run the store server",
        description="Run the store server and end with its exit code. Readiness depends on UMBP_DRAM_CAPACITY.",
    )
    mode.add_argument("--socket", type=Path, default=Path("/run/umbp/umbp.grpc.sock"), help="default: %(default)s")
    mode.add_argument("--stop-seconds", type=float, default=600.0, help="SIGKILL this long after SIGTERM (%(default)s)")
    _add_common(mode, port=9601)
    mode.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- SERVER ...", help="the server's command line")


def _add_engine(modes: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    mode = modes.add_parser(
        "engine",
        help="run the engine that the launch document asks for",
        description="Run the engine that the launch document asks for, and replace it when the document changes.",
    )
    mode.add_argument(
        "--document", type=Path, default=Path("/etc/umbra/launch/launch.json"), help="launch document (%(default)s)"
    )
    mode.add_argument("--drain-flag", type=Path, default=Path("/run/umbra/drain"), help="default: %(default)s")
    mode.add_argument("--store-port", type=int, default=9601, help="the store agent's port (default: %(default)s)")
    mode.add_argument("--without-store", action="store_true", help="start without waiting for a store")
    mode.add_argument(
        "--rest-seconds", type=float, default=10.0, help="SIGTERM to SIGKILL for what the engine left (%(default)s)"
    )
    mode.add_argument("--drm", type=Path, default=Path("/sys/class/drm"), help="the node's GPUs (default: %(default)s)")
    mode.add_argument("--dri", type=Path, default=Path("/dev/dri"), help="this container's GPUs (default: %(default)s)")
    mode.add_argument(
        "--gpu-memory-seconds", type=float, default=60.0, help="longest wait for the GPUs' memory (%(default)s)"
    )
    # The rendered readiness probe: two failures, 2 s apart, then the endpoints must reach every node.
    mode.add_argument(
        "--lame-duck-seconds", type=float, default=6.0, help="not ready, then SIGTERM to the engine (%(default)s)"
    )
    _add_common(mode, port=9600)


def _add_common(mode: argparse.ArgumentParser, port: int) -> None:
    # Not at the top: nothing but this module may be imported before the import path is pinned.
    from umbra_agent import upgrade

    mode.add_argument("--bind", default="0.0.0.0", help="address of the agent's HTTP server (default: %(default)s)")
    mode.add_argument("--port", type=int, default=port, help="port of the agent's HTTP server (default: %(default)s)")
    mode.add_argument("--kit-root", type=Path, default=Path("/umbra"), help="kit versions (default: %(default)s)")
    mode.add_argument("--run-dir", type=Path, default=Path("/run/umbra"), help="small files (default: %(default)s)")
    mode.add_argument("--handover", type=int, metavar="FD", help="what an earlier agent left; never give it by hand")
    mode.add_argument("--rehearse", type=int, choices=[upgrade.FORMAT], help="only say whether this agent would start")
    mode.add_argument("--boot-id", type=Path, default=Path("/run/umbp/boot_id"), help="default: %(default)s")
    _add_termination(mode)


def _add_termination(mode: argparse.ArgumentParser) -> None:
    mode.add_argument("--termination-log", type=Path, default=TERMINATION_LOG, help="default: %(default)s")


if __name__ == "__main__":
    sys.exit(main())
