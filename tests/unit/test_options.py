"""Options and errors: names, ranges, remedies."""

from __future__ import annotations

import inspect
import pickle

import pytest

from pinfold import errors
from pinfold.chat_options import ChatOptions
from pinfold.errors import ContextOverflowError, InvalidRequestError, PinfoldError, UnknownOptionError
from pinfold.options import ChatKeywords, CompleteKeywords, GenerationOptions, RuntimeOptions, parse_ttl


@pytest.mark.parametrize(
    ("given", "seconds"), [("5m", 300), ("1h", 3600), ("90", 90), (90, 90), ("1.5d", 129600), ("2S", 2), (None, None)]
)
def test_a_ttl_in_words_and_numbers(given: str | float | None, seconds: float | None) -> None:
    assert parse_ttl(given) == seconds


@pytest.mark.parametrize("given", ["soon", "", "-5m", 0, "0s", "nan", "inf", "1e999", "m"])
def test_a_ttl_that_is_none_is_refused_with_the_remedy(given: str | float) -> None:
    with pytest.raises(InvalidRequestError, match="such as '5m'"):
        parse_ttl(given)


def test_unknown_names_get_the_nearest_known_one() -> None:
    with pytest.raises(UnknownOptionError, match="Did you mean 'temperature'"):
        GenerationOptions.parse({"temprature": 1})
    with pytest.raises(UnknownOptionError, match=r"Known options: .*n_ctx"):
        RuntimeOptions.parse({"zzz": 1})


def test_values_out_of_range_name_the_option() -> None:
    with pytest.raises(InvalidRequestError, match=r"'top_p'.*got 2"):
        GenerationOptions.parse({"top_p": 2})


def test_stop_may_be_one_string_or_many_or_none() -> None:
    assert GenerationOptions.parse({"stop": "a"}).stop == ("a",)
    assert GenerationOptions.parse({"stop": ["a", "b"]}).stop == ("a", "b")
    assert GenerationOptions.parse({"stop": None}).stop == ()


def test_the_keywords_that_type_checkers_see_are_the_fields_that_exist() -> None:
    generation = set(GenerationOptions.model_fields)
    assert set(CompleteKeywords.__annotations__) == generation | {"salt"}
    chat = {"tools", "tool_choice", "response_format", "session", *ChatOptions.model_fields}
    assert set(ChatKeywords.__annotations__) == generation | {"salt"} | chat


def test_the_tree_in_the_docstring_is_the_tree_in_the_code() -> None:
    drawn = [line.strip(" │├└─").split(" ")[0] for line in (errors.__doc__ or "").splitlines() if "Error" in line]
    defined = [
        name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, PinfoldError)
    ]
    assert sorted(drawn) == sorted(defined) == errors.__all__


def test_a_context_overflow_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(ContextOverflowError(9, 8)))  # noqa: S301 - our own bytes
    assert (copy.prompt_tokens, copy.n_ctx, str(copy)) == (9, 8, str(ContextOverflowError(9, 8)))


def test_a_key_error_of_ours_reads_as_a_sentence() -> None:
    assert str(errors.PinNotFoundError("There is no pin 'x'.")) == "There is no pin 'x'."
