"""The page about the write policy, its picture and its figures."""

from policybench import BEGIN, END, PAGE
from policypicture import TARGET, picture


def test_the_picture_is_what_the_policy_decides() -> None:
    assert TARGET.read_text() == picture()


def test_the_page_has_a_place_for_the_table_and_shows_the_picture() -> None:
    text = PAGE.read_text()
    assert text.count(BEGIN) == text.count(END) == 1
    assert text.index(BEGIN) < text.index("| `bytes_per_prompt_token_adaptive_145gib` |") < text.index(END)
    assert f"../pictures/{TARGET.name}" in text
