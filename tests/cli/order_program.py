"""A program with a flow in it, as people write them."""

from __future__ import annotations

from typing import Any

from analemma import Flow

flow = Flow("order")


@flow.step(reads=["prices"], writes=["total"])
def add_up(state: Any, ctx: Any) -> dict[str, int]:
    return {"total": sum(state["prices"])}


flow.human("approve", choices=["yes", "no"], prompt="Pay {{total}}?")


@flow.step(reads=["total", "broken"], writes=["paid"])
def pay(state: Any, ctx: Any) -> dict[str, int]:
    if state.get("broken"):
        raise OSError("the till is closed")
    return {"paid": state["total"]}
