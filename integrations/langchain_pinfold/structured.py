"""`with_structured_output`: an answer held to a schema by the grammar, and parsed into what the user asked for."""

from __future__ import annotations

import json
from operator import itemgetter
from typing import Any, Literal

from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import JsonOutputKeyToolsParser, PydanticToolsParser
from langchain_core.outputs import ChatGeneration, Generation
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema
from langchain_core.utils.pydantic import is_basemodel_subclass

from pinfold.errors import InvalidRequestError, ToolSchemaError

__all__ = ["Method", "Schema", "answer_parser", "call_parser", "response_format", "with_raw"]

Schema = dict[str, Any] | type
Method = Literal["function_calling", "json_schema", "json_mode"]


class _WholeAnswer:
    """Refuses an answer that was cut off. The parsers below would repair it or return None without a word."""

    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        message = result[0].message if isinstance(result[0], ChatGeneration) else None
        more_to_come = partial and not (isinstance(message, AIMessageChunk) and message.chunk_position == "last")
        if message is not None and not more_to_come:
            self._check(message)
        return super().parse_result(result, partial=more_to_come)  # type: ignore[misc]

    def _check(self, message: BaseMessage) -> None:
        raise NotImplementedError


class _WholeCall(_WholeAnswer):
    def _check(self, message: BaseMessage) -> None:
        if not (isinstance(message, AIMessage) and message.tool_calls):
            raise _cut_off(message)


class _WholeJson(_WholeAnswer):
    def _check(self, message: BaseMessage) -> None:
        try:
            json.loads(message.text)
        except json.JSONDecodeError as e:
            raise _cut_off(message) from e


class _PydanticCallParser(_WholeCall, PydanticToolsParser):
    pass


class _DictCallParser(_WholeCall, JsonOutputKeyToolsParser):
    pass


class _PydanticJsonParser(_WholeJson, PydanticOutputParser[Any]):
    pass


class _DictJsonParser(_WholeJson, JsonOutputParser):
    pass


def _cut_off(message: BaseMessage) -> OutputParserException:
    length = message.response_metadata.get("finish_reason") == "length"
    remedy = "Raise max_tokens." if length else "See the message under `raw` with include_raw=True."
    what = "was cut off at max_tokens" if length else "is not of the form asked for"
    return OutputParserException(f"The structured answer {what}. {remedy}", llm_output=message.text)


def call_parser(schema: Schema, name: str) -> BaseOutputParser[Any]:
    """Parses the call of the tool `name` into `schema` (a pydantic class) or a dict."""
    if cls := _pydantic_class(schema):
        return _PydanticCallParser(tools=[cls], first_tool_only=True)
    return _DictCallParser(key_name=name, first_tool_only=True)


def answer_parser(schema: Schema | None) -> BaseOutputParser[Any]:
    """Parses an answer in JSON into `schema` (a pydantic class) or a dict."""
    if cls := _pydantic_class(schema):
        return _PydanticJsonParser(pydantic_object=cls)
    return _DictJsonParser()


def response_format(schema: Schema | None, method: Method) -> dict[str, Any]:
    """The runtime's response format. JSON mode holds the answer to JSON, not to the schema.

    Raises:
        InvalidRequestError: no schema for json_schema.
        ToolSchemaError: a schema that is none.
    """
    if method == "json_mode":
        return {"type": "json_object"}
    if schema is None:
        msg = "with_structured_output needs a schema; method='json_mode' is the one that goes without."
        raise InvalidRequestError(msg)
    try:
        converted = convert_to_json_schema(schema)
    except (ValueError, TypeError, KeyError) as e:
        msg = f"This is no schema: {schema!r} ({e}). Pass a pydantic class, a TypedDict, or a JSON schema with a title."
        raise ToolSchemaError(msg) from e
    return {"type": "json_schema", "json_schema": {"name": converted["title"], "schema": converted}}


def with_raw(
    model: Runnable[LanguageModelInput, AIMessage], parser: BaseOutputParser[Any]
) -> Runnable[LanguageModelInput, dict[str, Any]]:
    """Runs `model` and gives ``{"raw", "parsed", "parsing_error"}``; a parsing error is returned, not raised."""
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=model) | parsed.with_fallbacks([failed], exception_key="parsing_error")


def _pydantic_class(schema: Schema | None) -> Any:
    """`schema` if it is a pydantic class, of v2 or v1, else None."""
    return schema if isinstance(schema, type) and is_basemodel_subclass(schema) else None
