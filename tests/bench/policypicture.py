"""Draws which checkpoints of a prompt are stored: ``docs/pictures/checkpoints.svg``. The linker's policy is asked."""

from collections.abc import Iterator

from figures import REPOSITORY
from umbra_linker.policy import WINDOW_MILLISECONDS, Boundary, boundary, keeps_checkpoint
from umbra_linker.settings import Checkpoints

TARGET = REPOSITORY / "docs" / "pictures" / "checkpoints.svg"
CHUNK, GRID = 8192, 64
PROMPT = 9 * CHUNK + 5000
ANSWER_END = PROMPT + 4000
ENDS = [*range(CHUNK, PROMPT, CHUNK), PROMPT // GRID * GRID, ANSWER_END // GRID * GRID]
ROWS = (
    ("All", "", Checkpoints.ALL, 0),
    ("Adaptive", "kept 30 minutes or more", Checkpoints.ADAPTIVE, WINDOW_MILLISECONDS),
    ("", "15 to 30 minutes", Checkpoints.ADAPTIVE, WINDOW_MILLISECONDS // 2),
    ("", "less than 15 minutes", Checkpoints.ADAPTIVE, 0),
    ("PromptEnd", "", Checkpoints.PROMPT_END, 0),
)
LEFT, WIDE, TOP, APART = 262, 646, 150, 44
INK, PALE, GREEN, WHITE = "#1f2937", "#4b5563", "#2f6f4f", "#ffffff"


def kept(checkpoints: Checkpoints, window_ms: int) -> list[bool]:
    """For each of ENDS, whether its checkpoint is stored."""
    begins = [0, *ENDS[:-1]]
    return [
        keeps_checkpoint(checkpoints, boundary(end, PROMPT, GRID), begin, end, chunk=CHUNK, window_ms=window_ms)
        for begin, end in zip(begins, ENDS, strict=True)
    ]


def picture() -> str:
    """The SVG."""
    return "\n".join(_lines()) + "\n"


def _x(tokens: int) -> float:
    return round(LEFT + WIDE * tokens / ENDS[-1], 1)


def _lines() -> Iterator[str]:
    bottom = TOP + APART * len(ROWS)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 940 {bottom + 80}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="14">'
    )
    yield "  <title>Which checkpoints of a prompt and its answer each policy stores</title>"
    yield '  <defs><marker id="to" viewBox="0 0 10 10" refX="1" refY="5" markerWidth="7" markerHeight="7">'
    yield '    <path d="M10 0 L0 5 L10 10 z" fill="#44546a"/></marker></defs>'
    yield f'  <rect width="940" height="{bottom + 80}" fill="#ffffff"/>'
    yield from _text(24, 36, "one request", bold=True)
    yield from _text(LEFT, 36, "prompt, computed in chunks of 8,192 tokens")
    yield from _text(_x(PROMPT) + 4, 36, "answer")
    for begin, end in zip([0, *ENDS[:-1]], ENDS, strict=True):
        fill = "#fdf3e4" if boundary(end, PROMPT, GRID) is Boundary.DECODE_END else "#eef3fa"
        across = f'x="{_x(begin)}" width="{_x(end) - _x(begin):.1f}"'
        yield f'  <rect {across} y="48" height="26" fill="{fill}" stroke="#44546a"/>'
    yield from _text(24, 66, "KV pages: all are stored", pale=True)
    yield from _text(24, 118, "checkpoints", bold=True)
    for end in ENDS:
        yield f'  <path d="M{_x(end)} 74 V{bottom - 20}" stroke="#d1d5db"/>'
    names = {Boundary.PROMPT_END: "prompt end", Boundary.DECODE_END: "decode end"}
    yield from _text(_x(ENDS[0]) - 20, 100, "chunk ends", pale=True)
    yield from _text(_x(ENDS[-2]) - 62, 100, names[boundary(ENDS[-2], PROMPT, GRID)], pale=True)
    yield from _text(_x(ENDS[-1]) - 66, 122, names[boundary(ENDS[-1], PROMPT, GRID)], pale=True)
    for number, (name, window, checkpoints, window_ms) in enumerate(ROWS):
        y = TOP + number * APART
        yield from _text(24, y + 5, name, bold=True)
        yield from _text(104 if window else 24, y + 5, window, pale=True)
        for end, stored in zip(ENDS, kept(checkpoints, window_ms), strict=True):
            yield f'  <circle cx="{_x(end)}" cy="{y}" r="8" fill="{GREEN if stored else WHITE}" stroke="{GREEN}"/>'
    arrow = f'd="M{_x(ENDS[3])} {bottom + 14} H{_x(ENDS[2])}"'
    yield f'  <path {arrow} stroke="#44546a" stroke-width="1.6" marker-end="url(#to)"/>'
    yield from _text(24, bottom + 19, "how a node is written", bold=True)
    yield from _text(_x(ENDS[3]) + 12, bottom + 19, "its checkpoint, then its pages from the last to the first")
    yield f'  <circle cx="{LEFT + 8}" cy="{bottom + 52}" r="8" fill="{GREEN}" stroke="{GREEN}"/>'
    yield from _text(LEFT + 24, bottom + 57, "stored")
    yield f'  <circle cx="{LEFT + 98}" cy="{bottom + 52}" r="8" fill="#ffffff" stroke="{GREEN}"/>'
    yield from _text(LEFT + 114, bottom + 57, "not stored: a prompt that ends here is restored up to the one before")
    yield "</svg>"


def _text(x: float, y: float, text: str, *, bold: bool = False, pale: bool = False) -> Iterator[str]:
    if text:
        weight = ' font-weight="bold"' if bold else ""
        yield f'  <text x="{x:g}" y="{y:g}" fill="{PALE if pale else INK}"{weight}>{text}</text>'


if __name__ == "__main__":
    TARGET.write_text(picture())
