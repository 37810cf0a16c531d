"""Loads contracts in a process that a failpoint may kill: `python -m tests.crash.contract_worker URL OBJECTS`."""

from __future__ import annotations

import sys

from tests.core.contracts.bookshop import EXAMPLE
from tests.stores import Store


def main() -> None:
    url, objects = sys.argv[1:]
    with Store(url, objects or None).open() as app:
        app.contracts.load(EXAMPLE)
        print("acknowledged", flush=True)


if __name__ == "__main__":
    main()
