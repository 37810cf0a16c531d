"""`code_interpreter`: runs code in a process of its own, within limits.

Code that stands in the document is a part of it: if it fails, the node does. Code of the state is data, written by a
model perhaps, and how it fails is data too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analemma.canon.canonical_json import canonical_json
from analemma.clock import Clock
from analemma.errors import AnalemmaError, Denied, Invalid, Limit, NotFound, Timeout
from analemma.flows.context import NodeContext
from analemma.flows.naming import field_of
from analemma.flows.node_types.code_running import Code, CodeRunner, Isolation, Outcome
from analemma.flows.nodes import CodeInterpreterNode
from analemma.flows.texts import plain_data, value_at

LONGEST_CODE = 100_000


class CodeInterpreter:
    """The handler of `code_interpreter` nodes. Threads may share it."""

    def __init__(self, *, isolation: Isolation, network: bool, python: str | None, clock: Clock) -> None:
        self._isolation = isolation
        self._network = network
        self._runner = CodeRunner(isolation=isolation, python=python, clock=clock)
        self._clock = clock

    def __call__(self, state: Mapping[str, Any], ctx: NodeContext) -> dict[str, Any]:
        node = ctx.node
        assert isinstance(node, CodeInterpreterNode)
        return {node.target: ctx.reading("code", lambda: self._answer(node, state, ctx))}

    def _answer(self, node: CodeInterpreterNode, state: Mapping[str, Any], ctx: NodeContext) -> Any:
        if self._isolation == "refuse":
            raise Denied("code of workflows is not run here", hint="see code_isolation among the settings")
        if node.network and not self._network:
            raise Denied("code of workflows gets no network here", hint="see code_network among the settings")
        outcome = self._runner.run(self._code(node, state, ctx), lambda: ctx.cancelled)
        if outcome is None:
            ctx.check_cancelled()
            raise Timeout("nobody waits for the code any more")
        if node.code_path is not None:
            return {"ok": outcome.ok, "result": outcome.result, "output": outcome.output, "error": outcome.error}
        if not outcome.ok:
            raise _error(outcome)
        return outcome.result

    def _code(self, node: CodeInterpreterNode, state: Mapping[str, Any], ctx: NodeContext) -> Code:
        text = node.code if node.code_path is None else value_at(state, node.code_path)
        if not isinstance(text, str):
            raise NotFound(f"the state has no code at {node.code_path}", hint="it has to be a text", node=node.id)
        if len(text) > LONGEST_CODE:
            raise Limit(f"the code has {len(text)} characters", hint="at most 100,000", limit=LONGEST_CODE)
        fields = {name: plain_data(state[name]) for name in map(field_of, node.all_reads()) if name in state}
        # What cannot be JSON is refused here, and not halfway.
        canonical_json(fields)
        wall_s = node.timeout_s if node.timeout_s is not None else 2 * node.cpu_s + 10
        if ctx.deadline is not None:
            wall_s = min(wall_s, max(0.01, ctx.deadline - self._clock.monotonic()))
        return Code(text, fields, node.memory_mb, node.cpu_s, node.disk_mb, wall_s, node.network)


def _error(outcome: Outcome) -> AnalemmaError:
    error = outcome.error or {"type": "Error", "message": "", "traceback": ""}
    message = f"the code failed: {error['type']}: {error['message']}" if outcome.reason is None else error["message"]
    facts = {"traceback": error["traceback"], "output": outcome.output[-1000:]}
    if outcome.reason in ("time", "cpu"):
        return Timeout(f"the code was ended: {message}", hint="raise cpu_s or timeout_s", **facts)
    if outcome.reason == "memory":
        return Limit("the code ran out of memory", hint="raise memory_mb", **facts)
    if outcome.reason is not None:
        return Limit(f"the code was ended: {message}", hint="let it do less", **facts)
    return Invalid(message, hint="look at the code", **facts)
