"""Rules are counted: which request meets which fault, and how often."""

from faultproxy import WRITES, CutAfter, CutBefore, Match, Pass, parse
from faultproxy.rules import Rule, RuleBook

LIST = parse("GET", "/api/v1/namespaces/a/pods")
CREATE = parse("POST", "/api/v1/namespaces/a/pods", b'{"metadata": {"name": "p"}}')
STATUS = parse("PATCH", "/api/v1/namespaces/b/pods/p/status")


def test_every_part_of_a_match_must_fit() -> None:
    def chosen(match: Match) -> list[bool]:
        return [match(each) for each in (LIST, CREATE, STATUS)]

    assert chosen(Match()) == [True, True, True]
    assert chosen(Match(WRITES)) == [False, True, True]
    assert chosen(Match(resource="pods")) == [True, True, False]
    assert chosen(Match(resource="pods*", namespace="b")) == [False, False, True]
    assert chosen(Match(name="p")) == [False, True, True]
    assert chosen(Match(where=lambda request: request.body != b"")) == [False, True, False]


def test_skip_and_times() -> None:
    book, fault = RuleBook(), CutBefore()
    rule = book.add(Rule(fault, Match(), skip=2, times=1))
    assert [book.choose(LIST) for _ in range(4)] == [None, None, fault, None]
    assert (rule.seen, rule.applied, rule.wait(0)) == (4, 1, True)


def test_the_first_rule_wins_and_every_rule_counts() -> None:
    book, first, second = RuleBook(), CutBefore(), CutAfter()
    book.add(Rule(first, Match(), times=1))
    later = book.add(Rule(second, Match(), skip=1))
    assert [book.choose(LIST), book.choose(LIST)] == [first, second]
    assert (later.seen, later.applied) == (2, 1)


def test_a_removed_rule_does_nothing_more() -> None:
    book = RuleBook()
    rule = book.add(Rule(Pass(), Match()))
    book.remove(rule, rule)
    assert book.choose(LIST) is None
    assert not rule.wait(0)
