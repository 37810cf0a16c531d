"""Loads contracts in a process that a failpoint may kill: `python -m tests.crash.contract_worker URL OBJECTS`."""

from __future__ import annotations

import sys

from tests.stores import Store
from tests.unit.contracts.bookshop import EXAMPLE


def main() -> None:
    url, objects = sys.argv[1:]
    with Store(url, objects or None).open() as app:
        app.contracts.load(EXAMPLE)
        print("acknowledged", flush=True)


if __name__ == "__main__":
    main()
