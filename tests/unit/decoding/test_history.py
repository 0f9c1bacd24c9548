"""Guesses from earlier answers: of the same salt only, never across two of them, and no more than is kept."""

from __future__ import annotations

from pinfold import Runtime, Script
from pinfold.decoding.costs import ForwardCosts
from pinfold.decoding.drafters import history
from pinfold.decoding.drafters.history import Answers, History

ANSWER = list(range(10, 30))


def test_an_answer_is_found_again_in_its_salt() -> None:
    answers = Answers()
    answers.remember("a", ANSWER)
    tail = [1, *ANSWER[:5]]
    guess = History(answers, "a", tail).guess([], 4)
    assert guess is not None
    assert (list(guess.tokens), guess.source) == (ANSWER[5:9], "history")
    assert History(answers, "b", tail).guess([], 4) is None
    assert History(answers, None, tail).guess([], 4) is None


def test_it_goes_on_behind_what_others_have_guessed() -> None:
    answers = Answers()
    answers.remember(None, ANSWER)
    guess = History(answers, None, [1, 10, 11]).guess([12, 13], 2)
    assert guess is not None
    assert list(guess.tokens) == [14, 15]


def test_two_answers_are_never_one() -> None:
    answers = Answers()
    answers.remember(None, ANSWER)
    answers.remember(None, [99, 98, 97, 96, 95])
    guess = History(answers, None, ANSWER[-6:]).guess([], 8)
    assert guess is None
    guess = History(answers, None, ANSWER[-8:-2]).guess([], 8)
    assert guess is not None
    assert list(guess.tokens) == ANSWER[-2:]


def test_only_so_much_is_kept(monkeypatch) -> None:
    monkeypatch.setattr(history, "_MOST_TOKENS", 100)
    monkeypatch.setattr(history, "_MOST_SALTS", 3)
    answers = Answers()
    for n in range(50):
        answers.remember(str(n % 5), [100 * n + i for i in range(20)])
    assert len(answers._texts) == 3
    assert all(len(tokens) <= 100 for tokens, _ in answers._texts.values())
    assert History(answers, "4", [100 * 49 + i for i in range(6)]).guess([], 1) is not None


def test_a_runtime_guesses_from_what_it_said_before(monkeypatch) -> None:
    monkeypatch.setattr(ForwardCosts, "learn", lambda *_: None)  # what this machine is doing meanwhile has no say
    reply = "Barrel seventeen goes to the north gate, and is weighed there before noon."
    with Runtime(Script([reply]), draft_history=True) as rt:
        rt.chat([{"role": "user", "content": "One?"}])
        again = rt.chat([{"role": "user", "content": "Two?"}])
        other = rt.chat([{"role": "user", "content": "Two?"}], salt="other")
        assert again.text == other.text == reply
        assert "history" in again.draft.sources
        assert "history" not in other.draft.sources
