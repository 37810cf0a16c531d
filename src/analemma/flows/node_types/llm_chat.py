"""`llm_chat`: asks a model at an OpenAI-compatible endpoint, calls the tools that it asks for, and counts tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any, Final

from analemma.canon.canonical_json import canonical_json, parse_json
from analemma.clock import Clock
from analemma.errors import AnalemmaError, Denied, Invalid, Limit, Timeout, Unavailable
from analemma.flows.context import NodeContext
from analemma.flows.handlers import Result
from analemma.flows.node_types.chat import Completion, add_usage, read_completion, read_stream
from analemma.flows.node_types.chat_tools import Tool, answer_text, make_tools
from analemma.flows.node_types.mocking import ANSWER, mocked
from analemma.flows.node_types.places import Places
from analemma.flows.node_types.variables import Filling, Variables, one_line
from analemma.flows.node_types.web import Bounds, Web, WebAnswer, WebRequest
from analemma.flows.nodes import LlmChatNode
from analemma.flows.texts import MISSING, plain_data, value_at

LARGEST_ANSWER: Final = 32 << 20
MOST_ROUNDS: Final = 16
"""How often a model may ask for tools before it has to answer."""
LONGEST_MESSAGE: Final = 500
LONGEST_NAME: Final = 200
"""Of a model, as it calls itself: it is logged and told."""
LONGEST_PAUSE_S: Final = 60.0
"""An endpoint that asks for a longer pause is left to the retries of the node."""
TRANSIENT: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})

FindFunction = Callable[[str, str], Callable[..., Any]]


class LlmChat:
    """The handler of `llm_chat` nodes. Threads may share it."""

    def __init__(
        self,
        *,
        web: Web,
        places: Places,
        variables: Variables,
        function: FindFunction,
        clock: Clock,
        chance: Random,
        retries: int = 3,
        read_s: float = 120.0,
    ) -> None:
        """`function` finds a tool, by its name and the node. `retries`: how often one question is asked again of an
        endpoint that is busy or fails."""
        self._web = web
        self._places = places
        self._variables = variables
        self._function = function
        self._clock = clock
        self._chance = chance
        self._retries = retries
        self._read_s = read_s

    def __call__(self, state: Mapping[str, Any], ctx: NodeContext) -> Result:
        node = ctx.node
        assert isinstance(node, LlmChatNode)
        answered = mocked(ctx)
        if answered is None:
            # Nothing is filled in before: what was answered is known without a key.
            answered = ctx.once(ANSWER, lambda key: self._conversation(node, state, ctx, key))
        usage, told = answered.get("usage", {}), None
        delta = {node.target: answered[ANSWER]}
        if node.usage_into is not None:
            delta[node.usage_into] = add_usage(value_at(state, node.usage_into), usage)
        if "model" in answered:
            told = f"{node.id}: {answered['model']}, {usage['total_tokens']} tokens"
            ctx.logger.info("%s", told)
        return Result(delta, message=told)

    def _conversation(self, node: LlmChatNode, state: Mapping[str, Any], ctx: NodeContext, key: str) -> dict[str, Any]:
        filling = self._variables.of(state)
        tools = make_tools([(name, self._function(name, node.id)) for name in node.tools])
        messages = _messages(node, state, filling)
        usage: dict[str, int] = {}
        for number in range(MOST_ROUNDS):
            ask = partial(self._round, node, messages, tools, filling, ctx)
            # Where there are tools, each answer by itself: what was paid for is not asked for again.
            said = ctx.once(f"round-{number}", ask) if tools else ask(key)
            usage = add_usage(usage, {"calls": 1, **said["usage"]})
            calls = said["message"].get("tool_calls", [])
            if not tools or not calls:
                return {ANSWER: _answer(node, said), "usage": usage, "model": said["model"] or "a model"}
            messages = [*messages, said["message"], *(_call(call, tools, ctx) for call in calls)]
        raise Limit(
            f"the model asked for tools {MOST_ROUNDS} times and gave no answer",
            hint="say in the messages when it has to answer",
            limit=MOST_ROUNDS,
        )

    def _round(
        self,
        node: LlmChatNode,
        messages: list[dict[str, Any]],
        tools: Mapping[str, Tool],
        filling: Filling,
        ctx: NodeContext,
        key: str,
    ) -> dict[str, Any]:
        """One answer as it is recorded. One that is of no use raises: it is not to be found again."""
        completion = self._ask(node, messages, tools, filling, ctx, key)
        said = {
            "message": filling.masked(completion.message),
            "finish_reason": completion.finish_reason and filling.told(completion.finish_reason, LONGEST_NAME),
            "model": completion.model and filling.told(completion.model, LONGEST_NAME),
            "usage": completion.usage,
        }
        if not tools or not completion.tool_calls:
            _answer(node, said)
        return said

    def _ask(
        self,
        node: LlmChatNode,
        messages: list[dict[str, Any]],
        tools: Mapping[str, Tool],
        filling: Filling,
        ctx: NodeContext,
        key: str,
    ) -> Completion:
        """One question, asked again while that may help."""
        for attempt in range(self._retries + 1):
            try:
                return self._send(node, messages, tools, filling, ctx, key)
            except (Unavailable, Timeout) as exc:
                pause_s = self._pause_s(exc, attempt, ctx)
                if pause_s is None:
                    raise
                ctx.logger.warning("the model is asked again in %.2f s: %s", pause_s, exc.message)
                self._rest(pause_s, ctx)
        raise AssertionError("the last attempt raises or answers")

    def _pause_s(self, error: AnalemmaError, attempt: int, ctx: NodeContext) -> float | None:
        """How long to wait before the question is asked again; None if it is not to be."""
        asked_s = error.facts.get("retry_after_s")
        pause_s = asked_s if asked_s is not None else self._chance.uniform(0.1, 0.5 * 2.0**attempt)
        late = ctx.deadline is not None and self._clock.monotonic() + pause_s >= ctx.deadline
        return None if attempt >= self._retries or late or pause_s > LONGEST_PAUSE_S else pause_s

    def _rest(self, seconds: float, ctx: NodeContext) -> None:
        until = self._clock.monotonic() + seconds
        while (left := until - self._clock.monotonic()) > 0:
            ctx.check_cancelled()
            self._clock.sleep(min(left, 0.25))

    def _send(
        self,
        node: LlmChatNode,
        messages: list[dict[str, Any]],
        tools: Mapping[str, Tool],
        filling: Filling,
        ctx: NodeContext,
        key: str,
    ) -> Completion:
        address = filling.address(node.base_url)
        token = None if node.api_key is None else _header(filling.text(node.api_key))
        content = _request(node, messages, tools, filling)
        destination = self._places.check(f"{address.url.rstrip('/')}/chat/completions", address.place)
        filling.check_host(destination.host, is_safe=destination.url.scheme == "https" or destination.is_listed)
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        headers |= {"idempotency-key": key}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        bounds = Bounds(LARGEST_ANSWER, self._read_s, ctx.deadline, ctx.check_cancelled)
        try:
            with self._web.send(WebRequest("POST", destination, headers, content), bounds) as answer:
                if answer.status != 200:
                    raise self._refusal(answer, destination.host, filling)
                if answer.headers.get("content-type", "").startswith("text/event-stream"):
                    return read_stream(answer.pieces)
                return read_completion(answer.body())
        except AnalemmaError as exc:
            # What the model says of itself may be in it, whole.
            exc.message = filling.told(exc.message, LONGEST_MESSAGE)
            exc.args = (exc.message,)
            raise

    def _refusal(self, answer: WebAnswer, host: str, filling: Filling) -> AnalemmaError:
        text = filling.told(answer.body())
        message = f"{host} answered with status {answer.status}" + (f": {text}" if text else "")
        if answer.status in TRANSIENT or answer.status >= 500:
            waits = self._web.asked_to_wait_s(answer.headers)
            facts = {} if waits is None else {"retry_after_s": waits}
            return Unavailable(message, hint="it may answer later", status=answer.status, **facts)
        if answer.status in (401, 403):
            return Denied(message, hint="look at the variable of api_key", status=answer.status)
        return Invalid(message, hint="look at the model, its parameters and the messages", status=answer.status)


def _request(node: LlmChatNode, messages: list[dict[str, Any]], tools: Mapping[str, Tool], filling: Filling) -> bytes:
    """The body of a request. What `parameters` say comes last, and null takes a key away."""
    made: dict[str, Any] = {"model": filling.text(node.model), "messages": messages}
    if node.temperature is not None:
        made["temperature"] = node.temperature
    if node.maximum_tokens is not None:
        made["max_tokens"] = node.maximum_tokens
    if node.response == "json":
        made["response_format"] = {"type": "json_object"}
    if tools:
        made["tools"] = [each.definition() for each in tools.values()]
    if node.stream:
        made |= {"stream": True, "stream_options": {"include_usage": True}}
    made |= filling.variables_in(dict(node.parameters))
    return canonical_json({key: value for key, value in made.items() if value is not None})


def _messages(node: LlmChatNode, state: Mapping[str, Any], filling: Filling) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [{"role": each.role, "content": filling.text(each.content)} for each in node.messages]
    earlier = MISSING if node.history is None else value_at(state, node.history)
    if earlier is MISSING or earlier is None:
        return made
    if not isinstance(earlier, list | tuple) or not all(
        isinstance(each, Mapping) and isinstance(each.get("role"), str) for each in earlier
    ):
        raise Invalid(f"{node.history} is no list of messages", hint="messages have a role and a content")
    return [*made[:-1], *plain_data(earlier), made[-1]]


def _call(call: Mapping[str, Any], tools: Mapping[str, Tool], ctx: NodeContext) -> dict[str, Any]:
    """What a tool answered, as a message. What the model did wrong it is told, to do it better."""
    ctx.check_cancelled()
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    tool = tools.get(name)
    if tool is None:
        text = f"there is no tool {name}; there are {', '.join(tools)}"
    else:
        try:
            text = ctx.once(f"tool-{name}", lambda key: answer_text(tool.call(arguments, ctx, key)))
        except Invalid as exc:
            text = f"error: {exc.message}"
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


def _answer(node: LlmChatNode, said: Mapping[str, Any]) -> Any:
    message = said["message"]
    if node.response == "message":
        return message
    if message.get("refusal") and not message.get("content"):
        raise Invalid(f"the model refused: {one_line(message['refusal'][:300])}", hint="ask otherwise")
    content = message.get("content")
    if content is None:
        raise Unavailable("the model asked for a tool and gave no answer", hint="let response be message")
    cut = "it was cut: raise maximum_tokens" if said["finish_reason"] == "length" else "let it be tried again"
    if node.response == "text":
        return content
    try:
        return parse_json(content.encode())
    except (Invalid, UnicodeError):
        raise Unavailable("the model answered with what is no JSON", hint=cut) from None


def _header(text: str) -> str:
    if not text.isascii() or not text.isprintable():
        raise Invalid("the key has characters that no header can hold", hint="look at the variable of api_key")
    return text.strip()
