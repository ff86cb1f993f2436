"""The page about the write policy, its picture and its figures."""

from policybench import BEGIN, END, PAGE, written
from policypicture import TARGET, picture
from sizingbench import agents


def test_the_picture_is_what_the_policy_decides() -> None:
    assert TARGET.read_text() == picture()


def test_the_page_has_a_place_for_the_table_and_shows_the_picture() -> None:
    text = PAGE.read_text()
    assert text.count(BEGIN) == text.count(END) == 1
    assert text.index(BEGIN) < text.index("| `bytes_per_prompt_token_adaptive_145gib` |") < text.index(END)
    assert f"../pictures/{TARGET.name}" in text


def test_the_replayed_figures_stand_beside_those_of_all() -> None:
    figures = written(agents(sessions=2, turns=150), sizes=(72,), seeds=1)
    names = {figure.name for figure in figures}
    assert {"bytes_per_prompt_token_adaptive_72gib", "restored_percent_prompt_end_72gib"} <= names
    assert all(figure.peer == "All" and figure.value > 0 and figure.peer_value for figure in figures)
