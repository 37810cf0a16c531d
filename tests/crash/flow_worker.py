"""A flow in a process that a failpoint may kill: `python -m tests.crash.flow_worker URL OBJECTS LOG`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.flow_program import drive, make_flow, to_file
from tests.stores import Store


def main() -> None:
    url, objects, log = sys.argv[1:]
    with Store(url, objects or None).open() as app:
        run = drive(app, make_flow(to_file(Path(log))))
        print(run.status, flush=True)


if __name__ == "__main__":
    main()
