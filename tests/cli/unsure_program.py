"""A program whose bank answers too late, the first time that it is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analemma import Flow

flow = Flow("unsure")
BANK = Path("bank.txt")
"""In the directory of whoever runs it."""


@flow.step(writes=["receipt"])
def pay(state: Any, ctx: Any) -> dict[str, str]:
    def charge(key: str) -> str:
        with BANK.open("a") as bank:
            bank.write(f"{key}\n")
        if len(BANK.read_text().splitlines()) == 1:
            raise TimeoutError("the bank did not answer")
        return "paid now"

    return {"receipt": ctx.once("charge", charge, on_unknown="fail")}
