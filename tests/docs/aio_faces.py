"""Writes what type checkers are told of `analemma.aio`: `python -m tests.docs.aio_faces src/analemma/aio_faces.pyi`."""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import re
import sys
import textwrap
import typing
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from analemma import aio
from tests.api.pipeline.shop import VIEW
from tests.core.contracts.bookshop import EXAMPLE

HEAD = '"""What `analemma.aio` derives, for type checkers. Written by `python -m tests.docs.aio_faces`."""\n'
WIDTH = 120
Imports = dict[str, set[str]]


def stub() -> str:
    """The file as it should be."""
    imports: Imports = defaultdict(set, {"analemma.aio": {"Async", "hop", "manage", "stream"}})
    parts = {type(face): type(part) for face, part in asyncio.run(_faces())}
    classes = ["\n".join(_lines(cls, of, imports)) for cls, of in parts.items()]
    lines = [f"from {module} import {', '.join(sorted(imports[module]))}" for module in sorted(imports)]
    return "\n".join([HEAD, lines.pop(), "", *lines, "", *classes])


async def _faces() -> list[tuple[object, object]]:
    """Each part of a store as it is in `analemma.aio` and as it is in `analemma`, the app first."""
    async with aio.open("sqlite:///:memory:") as app:
        await app.contracts.load(EXAMPLE)
        here, there = app.default, app.sync.default
        found: list[tuple[object, object]] = [
            (app, app.sync),
            (here.view(VIEW), there.view(VIEW)),
            (here.entity("BOOK", "1"), there.entity("BOOK", "1")),
        ]
        trip, handle = here.workflow("trip", owner="ann"), there.workflow("trip", owner="ann")
        handle.save({})
        ticket = await trip.checkpoint({})
        await ticket.wait()
        found += [(trip, handle), (await trip.at(1), handle.at(1)), (ticket, handle.checkpoint({}))]
        for face, part in found:
            names = [name for name in dir(type(face)) if name in aio.PARTS]
            found += [(getattr(face, name), getattr(part, name)) for name in names]
        return found


def _lines(cls: type, of: type, imports: Imports) -> Iterator[str]:
    """One class. Those that have verbs of their own inherit from what is derived."""
    imports[of.__module__].add(of.__name__)
    name = f"{cls.__name__.removeprefix('Async')}Face" if cls in aio.OURS.values() else cls.__name__
    yield f"class {name}(Async[{of.__name__}]):"
    for name, member in sorted(vars(cls).items()):
        verb = getattr(member, "__wrapped__", None)
        if name in aio.PARTS:
            part = "Tenant" if name == "default" else name.capitalize()
            if name in aio.OURS:
                imports["analemma.aio"].add(f"Async{part}")
            yield f"    {name}: Async{part}"
        elif isinstance(member, property) and name in (hints := inspect.get_annotations(of)):
            _need(hints[name], of, imports)
            yield f"    {name}: {hints[name]}"
        elif verb is not None:
            overloads = typing.get_overloads(verb)
            yield from ("    @overload\n" + _spelled(each, imports) for each in overloads)
            if aio.gives_handle(verb):
                yield _spelled(verb, imports, f"Async{inspect.signature(verb).return_annotation}")
            elif not overloads:
                yield f"    {name} = {aio.wrapper(verb).__name__}({of.__name__}.{name})"
    yield ""


def _spelled(verb: Callable[..., object], imports: Imports, gives: str | None = None) -> str:
    imports["typing"].add("overload")
    signature = inspect.signature(verb)
    # A verb of the kernel is a function, whose first parameter is the kernel.
    parameters = ["self", *(_parameter(each) for each in list(signature.parameters.values())[1:])]
    by_name = next((n for n, each in enumerate(signature.parameters.values()) if each.kind is each.KEYWORD_ONLY), None)
    if by_name is not None:
        parameters.insert(by_name, "*")
    _need(" ".join([*parameters, gives or signature.return_annotation]), verb, imports)
    start, end = f"async def {verb.__name__}(", f") -> {gives or signature.return_annotation}: ..."
    return _wrapped(start, parameters, end, "    ")


def _parameter(each: inspect.Parameter) -> str:
    hint = "" if each.annotation is each.empty else f": {each.annotation}"
    default = "" if each.default is each.empty else f" = {each.default!r}"
    return f"{'**' if each.kind is each.VAR_KEYWORD else ''}{each.name}{hint}{default}"


def _wrapped(start: str, items: list[str], end: str, indent: str) -> str:
    """On one line, or the items on lines of their own. They are to be read by programs."""
    if len(line := f"{indent}{start}{', '.join(items)}{end}") <= WIDTH:
        return line
    inner = textwrap.fill(", ".join(items), WIDTH - 8, break_long_words=False)
    return f"{indent}{start}\n{textwrap.indent(inner, indent + '    ')}\n{indent}{end}"


def _need(hint: str, of: Callable[..., object], imports: Imports) -> None:
    """Have the names of a hint imported from where the module that says it has them."""
    module = sys.modules[of.__module__]
    places = dict.fromkeys(vars(module), of.__module__)
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            places |= {alias.name: node.module for alias in node.names}
    for name in re.findall(r"(?<![\w'])[A-Za-z_]\w*(?![\w':])", hint):
        if name in places and not hasattr(builtins, name):
            imports[places[name]].add(name)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(stub(), encoding="utf-8")
