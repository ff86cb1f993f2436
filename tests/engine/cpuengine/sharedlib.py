"""Reading and compiling small shared libraries (binutils and gcc)."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from .packages import run


def needed_libraries(library: Path) -> list[str]:
    """Return the sonames that ``library`` links."""
    listing = run(["readelf", "-dW", library], problem="cannot read a library; install binutils")
    return re.findall(r"NEEDED.*\[(.*)\]", listing)


def undefined_symbols(library: Path) -> list[tuple[str, str]]:
    """Return (name, version) of each dynamic symbol that ``library`` expects from others; version may be ''."""
    argv: list[str | Path] = ["nm", "-D", "--undefined-only", "--with-symbol-versions", library]
    listing = run(argv, problem="cannot list a library's symbols; install binutils")
    names = (line.split()[-1] for line in listing.splitlines())
    return [(name, version.lstrip("@")) for name, _, version in (entry.partition("@") for entry in names)]


def compile_library(
    output: Path,
    symbols: Mapping[str, Iterable[str]],
    *,
    default: str,
    special: Mapping[str, str],
    soname: str | None = None,
) -> None:
    """Compile ``output``: one C function per symbol, grouped by symbol version ('' is unversioned).

    ``default`` and the values of ``special`` are C templates with ``%s`` where the function's name goes.
    """
    everything = sorted({name for names in symbols.values() for name in names})
    body = "\n".join((special.get(name, default)).replace("%s", name) for name in everything)
    nodes = [
        f"{version or 'UNVERSIONED'} {{ global: {'; '.join(sorted(names))}; }};\n"
        for version, names in sorted(symbols.items())
        if names
    ]
    nodes.append("LOCAL_ONLY { local: *; };\n")
    with tempfile.TemporaryDirectory() as scratch:
        source, script = Path(scratch, "source.c"), Path(scratch, "versions.map")
        source.write_text(body + "\n")
        script.write_text("".join(nodes))
        argv: list[str | Path] = ["gcc", "-shared", "-fPIC", "-w", "-o", output, source]
        argv.append(f"-Wl,--version-script={script}")
        if soname:
            argv.append(f"-Wl,-soname,{soname}")
        run(argv, problem=f"cannot compile {output.name}; install gcc and the C headers")
