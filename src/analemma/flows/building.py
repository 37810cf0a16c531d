"""Workflow documents from Python functions: `Flow`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from analemma.contracts.located import Located, locate
from analemma.errors import Invalid
from analemma.flows.document import Workflow
from analemma.flows.reading import check_located, usable
from analemma.flows.segments import Plan
from analemma.state.merge.values import NamedStrategy

Function = Callable[..., Any]
AnyFunction = TypeVar("AnyFunction", bound=Function)
Step = str | Function
"""A node by its id, or a function: one that is a step already, or one that becomes it."""
Asked = Mapping[str, Any] | Function
"""A condition: data as in a document, what `where` makes, or a function of state and context."""


class Common(TypedDict, total=False):
    """What every node can be told."""

    reads: Sequence[str]
    writes: Sequence[str]
    retries: int | Mapping[str, float]
    timeout_s: float
    ring: int
    capabilities: Sequence[str]
    checkpoint: bool
    description: str


class Where:
    """A place in the state, to be compared.

    >>> Where("label").equals("bug")
    {'path': 'label', 'is': 'equals', 'value': 'bug'}
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def equals(self, value: Any) -> dict[str, Any]:
        """It is this."""
        return self._is("equals", value)

    def not_equals(self, value: Any) -> dict[str, Any]:
        """It is not this, or not there."""
        return self._is("not_equals", value)

    def less_than(self, value: float | str) -> dict[str, Any]:
        """It is less."""
        return self._is("less_than", value)

    def at_most(self, value: float | str) -> dict[str, Any]:
        """It is this or less."""
        return self._is("at_most", value)

    def more_than(self, value: float | str) -> dict[str, Any]:
        """It is more."""
        return self._is("more_than", value)

    def at_least(self, value: float | str) -> dict[str, Any]:
        """It is this or more."""
        return self._is("at_least", value)

    def one_of(self, *values: Any) -> dict[str, Any]:
        """It is one of these."""
        return self._is("one_of", list(values))

    def contains(self, value: Any) -> dict[str, Any]:
        """A list that has this item, an object that has this key, or a text that has this part."""
        return self._is("contains", value)

    def exists(self) -> dict[str, Any]:
        """Something is there."""
        return {"path": self._path, "is": "exists"}

    def missing(self) -> dict[str, Any]:
        """Nothing is there."""
        return {"path": self._path, "is": "missing"}

    def _is(self, comparison: str, value: Any) -> dict[str, Any]:
        return {"path": self._path, "is": comparison, "value": value}


class Flow:
    """Builds a workflow document. Nodes run in the order in which they are declared, unless edges are given or a group
    names them.

    >>> flow = Flow("hello")
    >>> @flow.step(writes=["greeting"])
    ... def greet(state, ctx):
    ...     return {"greeting": "hello"}
    >>> flow.human("approve", choices=["yes", "no"])
    'approve'
    >>> [node["id"] for node in flow.document()["nodes"]]
    ['greet', 'approve']
    """

    def __init__(
        self,
        name: str,
        *,
        description: str | None = None,
        state: Mapping[str, str | Mapping[str, Any]] | None = None,
        additional: Literal["keep", "reject"] | None = None,
        limits: Mapping[str, float] | None = None,
        checkpoints: Literal["segment", "node"] | None = None,
        merge: NamedStrategy | Mapping[str, Any] | None = None,
    ) -> None:
        """`state` maps fields to types (`"list<string>"`), or to `{"type": ..., "required": True}`."""
        self.name = name
        self.functions: dict[str, Function] = {}
        """Every function of the flow, by the name that the document calls it by."""
        self.subflows: dict[str, Flow] = {}
        """The flows that it runs, by their names."""
        self._head: dict[str, Any] = _given(
            description=description,
            state=_state(state, additional),
            limits=None if limits is None else dict(limits),
            checkpoints=checkpoints,
            merge={"strategy": merge} if isinstance(merge, str) else merge,
        )
        self._nodes: list[dict[str, Any]] = []
        self._lines: list[int | None] = []
        self._edges: list[dict[str, str]] | None = None
        self._ids: dict[Function, str] = {}
        self._file, _ = _caller()
        self._checked: Workflow | None = None

    @staticmethod
    def where(path: str) -> Where:
        """Something in the state, to be compared: `flow.where("label").equals("bug")`."""
        return Where(path)

    @overload
    def step(self, function: AnyFunction, /, *, id: str | None = None, **common: Unpack[Common]) -> AnyFunction: ...

    @overload
    def step(
        self, function: None = None, /, *, id: str | None = None, **common: Unpack[Common]
    ) -> Callable[[AnyFunction], AnyFunction]: ...

    def step(self, function: AnyFunction | None = None, /, *, id: str | None = None, **common: Unpack[Common]) -> Any:
        """Make a function of state and context a node, as a decorator with or without arguments; it stays as it was."""

        def add(function: AnyFunction) -> AnyFunction:
            name = self._register(function)
            node = id or function.__name__
            self._add(node, "python", {"function": name}, common)
            self._ids.setdefault(function, node)
            return function

        return add if function is None else add(function)

    def llm(
        self,
        id: str,
        *,
        model: str,
        prompt: str | None = None,
        system: str | None = None,
        messages: Sequence[Mapping[str, str]] = (),
        tools: Sequence[Function | str] = (),
        into: str | None = None,
        options: Mapping[str, Any] | None = None,
        **common: Unpack[Common],
    ) -> str:
        """Ask a model; `options` are the node's other keys, such as `temperature`."""
        told = [] if system is None else [{"role": "system", "content": system}]
        asked = [] if prompt is None else [{"role": "user", "content": prompt}]
        named = [each if isinstance(each, str) else self._register(each) for each in tools]
        own = _given(model=model, messages=[*told, *map(dict, messages), *asked], tools=named or None, into=into)
        return self._add(id, "llm_chat", own | dict(options or {}), common)

    def http(
        self,
        id: str,
        url: str,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        into: str | None = None,
        options: Mapping[str, Any] | None = None,
        **common: Unpack[Common],
    ) -> str:
        """Send a request; `options` are the node's other keys, such as `accepts`."""
        own = _given(url=url, method=method, headers=headers, query=query, body=body, into=into)
        return self._add(id, "http_request", own | dict(options or {}), common)

    def code(
        self,
        id: str,
        code: str | None = None,
        *,
        code_path: str | None = None,
        into: str | None = None,
        options: Mapping[str, Any] | None = None,
        **common: Unpack[Common],
    ) -> str:
        """Run code in a process of its own; `options` are the node's other keys, such as `memory_mb`."""
        own = _given(code=code, code_path=code_path, into=into)
        return self._add(id, "code_interpreter", own | dict(options or {}), common)

    def human(
        self,
        id: str,
        *,
        choices: Sequence[str],
        prompt: str | None = None,
        default: str | None = None,
        into: str | None = None,
        **common: Unpack[Common],
    ) -> str:
        """Wait for a decision; with `timeout_s`, only for so long, and then `default` counts."""
        own = _given(choices=list(choices), prompt=prompt, default=default, into=into)
        return self._add(id, "human", own, common)

    def for_each(
        self,
        id: str,
        *,
        over: str,
        step: Step | None = None,
        steps: Sequence[Step] = (),
        item: str | None = None,
        index: str | None = None,
        result: str | None = None,
        into: str | None = None,
        max_parallel: int | None = None,
        max_items: int | None = None,
        **common: Unpack[Common],
    ) -> str:
        """Run a step, or several one after the other, for each item of a list."""
        body = self._members([*([] if step is None else [step]), *steps])
        own = _given(
            over=over,
            body=body,
            item=item,
            index=index,
            result=result,
            into=into,
            max_parallel=max_parallel,
            max_items=max_items,
        )
        return self._add(id, "for_each", own, common)

    def loop(
        self,
        id: str,
        steps: Sequence[Step],
        *,
        while_: Asked | None = None,
        until: Asked | None = None,
        times: int | None = None,
        max_iterations: int | None = None,
        on_limit: Literal["fail", "continue"] | None = None,
        **common: Unpack[Common],
    ) -> str:
        """Run steps again and again."""
        own = _given(
            body=self._members(steps),
            until=self._condition(until),
            times=times,
            max_iterations=max_iterations,
            on_limit=on_limit,
        )
        asked = self._condition(while_)
        return self._add(id, "loop", own if asked is None else own | {"while": asked}, common)

    def branch(
        self,
        id: str,
        cases: Iterable[tuple[Asked, Step | Sequence[Step]]],
        *,
        default: Step | Sequence[Step],
        **common: Unpack[Common],
    ) -> str:
        """Go the first way whose condition holds, or the default, which may be no step at all: `[]`."""
        made = [{"when": self._condition(asked), "then": self._members(_several(steps))} for asked, steps in cases]
        return self._add(id, "branch", {"cases": made, "default": self._members(_several(default))}, common)

    def parallel(
        self,
        id: str,
        branches: Mapping[str, Step | Sequence[Step]],
        *,
        max_parallel: int | None = None,
        **common: Unpack[Common],
    ) -> str:
        """Run branches beside one another."""
        made = {name: self._members(_several(steps)) for name, steps in branches.items()}
        return self._add(id, "parallel_group", _given(branches=made, max_parallel=max_parallel), common)

    def aggregate(
        self,
        id: str,
        *,
        of: str | None = None,
        strategy: NamedStrategy | None = None,
        strategies: Mapping[str, NamedStrategy] | None = None,
        function: Function | str | None = None,
        **common: Unpack[Common],
    ) -> str:
        """Merge a group's branches, or stand where ways meet."""
        named = self._register(function) if callable(function) else function
        own = _given(of=of, strategy=strategy, strategies=strategies, function=named)
        return self._add(id, "aggregator", own, common)

    def trigger(
        self,
        id: str,
        *,
        cron: str | None = None,
        every_s: float | None = None,
        zone: str | None = None,
        event: str | None = None,
        into: str | None = None,
        **common: Unpack[Common],
    ) -> str:
        """Say what sets a run off: a schedule, an event, or somebody."""
        on = "event" if event is not None else None if cron is None and every_s is None else "schedule"
        own = _given(on=on, cron=cron, every_s=every_s, zone=zone, event=event, into=into)
        return self._add(id, "trigger", own, common)

    def subflow(
        self,
        id: str,
        workflow: str | Flow,
        *,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | None = None,
        document: str | None = None,
        **common: Unpack[Common],
    ) -> str:
        """Run another workflow; `document` pins its hash."""
        name = workflow.name if isinstance(workflow, Flow) else workflow
        if isinstance(workflow, Flow):
            self.subflows[name] = workflow
        own = _given(workflow=name, inputs=inputs, outputs=outputs, document=document)
        return self._add(id, "subflow", own, common)

    def ingest(
        self,
        id: str,
        *,
        entity_type: str,
        entity_id: str,
        payload: str | None = None,
        delete: bool = False,
        into: str | None = None,
        **common: Unpack[Common],
    ) -> str:
        """Ingest what the state has at `payload` as an entity, or delete the entity."""
        own = _given(entity_type=entity_type, entity_id=entity_id, payload=payload, delete=delete or None, into=into)
        return self._add(id, "ingest", own, common)

    def view(
        self,
        id: str,
        *,
        view: str,
        entity_id: str | None = None,
        search: Mapping[str, Any] | None = None,
        missing: Literal["fail", "null"] | None = None,
        into: str | None = None,
        **common: Unpack[Common],
    ) -> str:
        """Ask a view for an entity, or for what an index finds: `search={"index": "author", "value": "{{author}}"}`."""
        own = _given(view=view, entity_id=entity_id, search=search, missing=missing, into=into)
        return self._add(id, "view", own, common)

    def archive(
        self,
        id: str,
        *,
        workspace: str,
        operation: Literal["archive", "restore"] | None = None,
        into: str | None = None,
        **common: Unpack[Common],
    ) -> str:
        """Archive or restore a workspace."""
        return self._add(id, "archive", _given(workspace=workspace, operation=operation, into=into), common)

    def edge(self, before: Step, *after: Step) -> None:
        """Say that a node runs before others. With the first edge, the order of declaration counts no more."""
        one = self._id(before)
        self._edges = self._edges or []
        self._edges += [{"from": one, "to": self._id(each)} for each in after]
        self._checked = None

    def workflow(self) -> Workflow:
        """The checked workflow; WorkflowProblems lists everything that is wrong, by the lines of the program."""
        if self._checked is None:
            document = {"workflow": self.name, **self._head, "nodes": self._nodes}
            located = locate(document if self._edges is None else document | {"edges": self._edges})
            for part, line in zip(located.parts["nodes"].parts.values(), self._lines, strict=True):
                _on_line(part, line)
            self._checked = usable(check_located(located, self._file))
        return self._checked

    def document(self) -> dict[str, Any]:
        """The workflow document, in canonical form."""
        return self.workflow().to_document()

    def plan(self) -> Plan:
        """Its segments."""
        from analemma.flows.partitioning import partition

        return partition(self.workflow())

    def _add(self, id: str, type: str, own: Mapping[str, Any], common: Common) -> str:
        self._nodes.append({"id": id, "type": type, **_plain(own), **_plain(common)})
        file, line = _caller()
        self._lines.append(line if file == self._file else None)
        self._checked = None
        return id

    def _register(self, function: Function) -> str:
        own = getattr(function, "__name__", "")
        if not own.isidentifier():
            raise Invalid(f"{function!r} has no name to be found by", hint="define it with def")
        name = f"{self.name}.{own}"
        if self.functions.setdefault(name, function) is not function:
            raise Invalid(f"two functions of {self.name} are called {own}", hint="give one another name")
        return name

    def _condition(self, asked: Asked | None) -> Any:
        if asked is None or isinstance(asked, Mapping):
            return asked
        return {"function": self._register(asked)}

    def _members(self, steps: Sequence[Step]) -> list[str]:
        return list(map(self._id, steps))

    def _id(self, step: Step) -> str:
        """The id of a step; a function that is none becomes one."""
        if isinstance(step, str):
            return step
        if step not in self._ids:
            self.step(step)
        return self._ids[step]


def _several(steps: Step | Sequence[Step]) -> Sequence[Step]:
    return [steps] if isinstance(steps, str) or callable(steps) else steps


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    """Data as a document has it: callers may pass tuples and mappings of any kind."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _state(fields: Mapping[str, Any] | None, additional: str | None) -> dict[str, Any] | None:
    if fields is None and additional is None:
        return None
    made = {name: {"type": each} if isinstance(each, str) else dict(each) for name, each in (fields or {}).items()}
    return _given(fields=made, additional=additional)


def _caller() -> tuple[str, int | None]:
    """The first line on the way here that is not of this module."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _on_line(part: Located, line: int | None) -> None:
    part.line = line
    part.key_lines = dict.fromkeys(part.key_lines, line)
    for each in part.parts.values():
        _on_line(each, line)
