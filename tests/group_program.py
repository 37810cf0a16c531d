"""A program with groups whose functions other processes can find: they stand at the top level of a module."""

from __future__ import annotations

import os
import signal
from typing import Any

from analemma import Flow

PLACE: dict[str, Any] = {"workflow_id": "t-1", "owner_id": "me"}

squares = Flow("squares")


@squares.step(id="square", reads=["item", "index", "factor"], writes=["answer", "notes"])
def square(state: Any, ctx: Any) -> dict[str, Any]:
    assert ctx.item_index == state["index"]
    return {"answer": {"square": state["item"]["n"] ** 2 * state["factor"], "at": state["index"]}}


squares.for_each("each", over="numbers", step=square, result="/answer/square", into="squares")

merged = Flow("merged")


@merged.step(reads=["text"], writes=["words"])
def count_words(state: Any, ctx: Any) -> dict[str, Any]:
    ctx.emit({"type": "Counted"})
    return {"words": len(state["text"].split())}


@merged.step(reads=["text", "words"], writes=["long"])
def is_long(state: Any, ctx: Any) -> dict[str, Any]:
    return {"long": state["words"] > 3}


@merged.step(reads=["text"], writes=["letters", "size"])
def count_letters(state: Any, ctx: Any) -> dict[str, Any]:
    assert "words" not in state
    return {"letters": len(state["text"]), "size": "x" * 300_000}


merged.parallel("both", {"words": [count_words, is_long], "letters": [count_letters]})

failing = Flow("failing")


@failing.step(reads=["item"], writes=["answer"])
def divide(state: Any, ctx: Any) -> dict[str, Any]:
    return {"answer": [1 / state["item"], os.getpid()]}


failing.for_each("each", over="numbers", step=divide)

killing = Flow("killing")


@killing.step(reads=["item", "once"], writes=["answer"])
def die_once(state: Any, ctx: Any) -> dict[str, Any]:
    if state["item"] == 17 and not os.path.exists(state["once"]):
        with open(state["once"], "w"):
            os.kill(os.getpid(), signal.SIGKILL)
    return {"answer": state["item"] + 1}


killing.for_each("each", over="numbers", step=die_once, result="answer")
