"""The page about the linker's speed."""

import pytest

from linkerbench import BEGIN, END, PAGE, PEER, bounded


def test_the_page_has_a_place_for_the_table() -> None:
    text = PAGE.read_text()
    assert text.count(BEGIN) == text.count(END) == 1
    assert text.index(BEGIN) < text.index("| `kv_bytes_per_token_tp8` |") < text.index(END)


def test_what_never_came_to_an_end_is_told_in_words_for_the_peer_and_refused_for_ours() -> None:
    figure = bounded("wait", "ms", {False: [0.001, 0.003], True: [None, None]}, max, 1e3, "hangs > 10 s")
    assert (figure.value, figure.peer, figure.peer_value, figure.ratio) == (3.0, f"{PEER}: hangs > 10 s", None, None)
    both = bounded("wait", "s", {False: [2.0], True: [1.0]}, max)
    assert (both.peer, both.ratio) == (PEER, 2.0)
    with pytest.raises(RuntimeError, match="wait"):
        bounded("wait", "s", {False: [1.0, None], True: [1.0, 1.0]}, max)
