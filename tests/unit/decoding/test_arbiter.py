"""How much of a guess is verified: by its chance, by what forwards cost, and by what came of the last ones."""

from __future__ import annotations

import random

import pytest

from pinfold.decoding.acceptance import Acceptance
from pinfold.decoding.arbiter import Arbiter, Trail
from pinfold.decoding.costs import MOST_ROWS, POINTS, ForwardCosts
from pinfold.decoding.drafters.base import Guess

FLAT = dict.fromkeys(POINTS, 0.01)
LINEAR = {rows: 0.010 * rows for rows in POINTS}


class Fixed:
    """A drafter that always says the same."""

    def __init__(self, tokens: list[int], source: str = "lookup", strength: int = 3, cost: float = 0.0) -> None:
        self.said = Guess(tokens, source, strength)
        self.source, self.excuse, self.seconds_per_token = source, "", cost
        self.asked: list[int] = []

    def guess(self, ahead: list[int], most: int) -> Guess | None:
        self.asked.append(most)
        return Guess(self.said.tokens[:most], self.said.source, self.said.strength)

    def close(self) -> None: ...


def trail(costs: dict[int, float], *drafters: Fixed) -> Trail:
    return Trail(Arbiter(ForwardCosts("cpu", costs)), drafters)


def test_where_rows_cost_nothing_all_of_a_guess_is_verified() -> None:
    assert len(trail(FLAT, Fixed([5] * 40)).draft(1, 40)) > 20


def test_where_each_row_costs_a_forward_nothing_is() -> None:
    assert trail(LINEAR, Fixed([5] * 40)).draft(1, 40) == []


def test_weak_guesses_are_verified_less_far_than_strong_ones() -> None:
    weak, strong = (len(trail({}, Fixed([5] * 40, strength=s)).draft(1, 40)) for s in (0, 3))
    assert weak < strong


def test_it_stops_when_guesses_are_wrong_and_starts_again_when_they_are_right() -> None:
    t = trail({}, Fixed([5] * 16))
    for _ in range(40):
        drafted = t.draft(1, 16)
        if not drafted:
            break
        t.verified(len(drafted), 0, 1)
    assert t.draft(1, 16) == []
    for _ in range(200):  # no forward is spent on it: the tokens that come anyway show that it would be right
        if t.draft(1, 16):
            break
        t.came(5)
    assert t.draft(1, 16)


def test_counts_are_by_source() -> None:
    t = trail(FLAT, Fixed([1, 2], "grammar", 0), Fixed([3, 4, 5, 6]))
    drafted = t.draft(1, 6)
    assert drafted == [1, 2, 3, 4, 5, 6]
    t.verified(6, 3, 4)
    facts = t.facts()
    assert facts.rounds == 1
    assert {s: (c.drafted, c.accepted) for s, c in facts.sources.items()} == {"grammar": (2, 2), "lookup": (4, 1)}


def test_a_drafter_that_takes_its_time_is_asked_for_what_pays() -> None:
    cheap, dear = Fixed([5] * 40, "model", cost=0.0001), Fixed([5] * 40, "model", cost=1.0)
    assert trail(FLAT, cheap).draft(1, 40)
    assert cheap.asked[0] < 40
    assert trail(FLAT, dear).draft(1, 40) == []
    assert dear.asked == []


def test_a_drafter_that_did_not_pay_is_looked_at_again() -> None:
    slow = Fixed([5] * 40, "model", cost=0.3)
    t = trail(dict.fromkeys(POINTS, 1.0), slow)
    t._acceptance.chance_of = lambda _: 0.01  # type: ignore[method-assign]
    for _ in range(500):
        assert t.draft(1, 40) == []
        t.came(5)
    assert slow.asked == [8, 8]  # a watched guess costs as much as 2.4 tokens: a hundredth of 240


def test_a_guess_that_would_barely_pay_is_left_out_where_a_failure_costs_a_second_forward() -> None:
    costs = ForwardCosts("cpu", {rows: 0.010 * (1 + 0.4 * rows) for rows in POINTS})
    guess = [Guess([5] * 20, "lookup", 1)]
    lengths = [Arbiter(costs, recomputes=again).length(guess, Acceptance(), 1) for again in (False, True)]
    assert lengths == [2, 0]


def test_there_are_never_more_rows_than_a_forward_takes() -> None:
    t = trail(FLAT, Fixed([5] * 200))
    assert len(t.draft(MOST_ROWS - 3, 200)) <= 3
    assert t.draft(MOST_ROWS, 200) == []
    assert t.draft(1, 0) == []


def test_chances_follow_what_is_seen() -> None:
    above = Acceptance()
    one = Acceptance(above)
    guess = Guess([1] * 8, "lookup", 1)
    before = one.chances(guess)[0]
    for _ in range(30):
        one.learn(guess, 0, 1)
    assert one.chances(guess)[0] < 0.2 < before
    assert Acceptance(above).chances(guess)[0] < before  # another request has learnt from it
    for _ in range(60):
        one.learn(guess, 8, 8)
    assert one.chances(guess)[0] > 0.9


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_costs_never_fall_with_rows(device: str) -> None:
    numbers = random.Random(7)  # noqa: S311 - not for secrets
    costs = ForwardCosts(device)
    for _ in range(300):
        costs.learn(numbers.choice(POINTS), numbers.uniform(0.001, 0.1))
        table = [costs.seconds(rows) for rows in range(1, MOST_ROWS + 20)]
        assert table == sorted(table)


def test_costs_are_kept_for_a_later_process() -> None:
    costs = ForwardCosts("cpu")
    for rows in (1, 4, 16):
        for seconds in (0.5, 0.01 * rows, 0.01 * rows, 0.02 * rows, 9.0)[:3]:
            costs.learn(rows, seconds)
    again = ForwardCosts("cpu", costs.known())
    assert again.known() == costs.known() == {1: 0.01, 4: 0.04, 16: 0.16}
    assert 0.04 < again.seconds(8) < 0.16


def test_one_slow_forward_changes_little() -> None:
    costs = ForwardCosts("cpu", {1: 0.01})
    for _ in range(5):
        costs.learn(1, 0.01)
    costs.learn(1, 3.0)
    assert costs.seconds(1) == pytest.approx(0.01)


def test_a_request_loses_little_however_good_the_guesses_of_others_were() -> None:
    costs = ForwardCosts("cpu", {})
    arbiter = Arbiter(costs)
    for _ in range(200):
        arbiter.acceptance.learn(Guess([5] * 40, "lookup", 3), 40, 40)
    t = Trail(arbiter, [Fixed([5] * 40)])
    lost = 0.0
    for _ in range(200):  # none of its guesses is right
        drafted = len(t.draft(1, 40))
        lost += costs.seconds(1 + drafted) / costs.seconds(1) - 1
        if drafted:
            t.verified(drafted, 0, 1)
        else:
            t.came(6)
    assert 0 < lost < 4.1


def test_what_a_request_gained_it_may_stake() -> None:
    t = trail({}, Fixed([5] * 40, strength=4))
    drafted = [len(t.draft(1, 40))]
    for _ in range(3):
        t.verified(drafted[-1], drafted[-1], drafted[-1])
        drafted.append(len(t.draft(1, 40)))
    assert drafted == sorted(drafted)
    assert drafted[0] < 5
    assert drafted[-1] > 30


def test_what_a_grammar_forbids_is_not_verified() -> None:
    asked: list[list[int]] = []

    def valid(tokens: list[int]) -> int:
        asked.append(list(tokens))
        return min(4, len(tokens))

    forced, copied, late = Fixed([1, 2], "grammar", 0), Fixed([3, 4, 5, 6]), Fixed([7], "history", 3)
    t = Trail(Arbiter(ForwardCosts("cpu", FLAT)), [forced, copied, late], valid)
    assert t.draft(1, 40) == [1, 2, 3, 4]
    assert asked == [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 7]]
