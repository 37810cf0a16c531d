"""What `test_programs` runs: says what it was given, or does what it is told."""

from __future__ import annotations

import json
import os
import sys
import time

from analemma.testing import failpoints

if __name__ == "__main__":
    match sys.argv[1]:
        case "tell":
            facts = {
                "arguments": sys.argv[2:],
                "directory": os.getcwd(),
                "variable": os.environ.get("TOLD"),
                "input": sys.stdin.read(),
                "parent": os.getppid(),
                "name": __name__,
            }
            print(json.dumps(facts))
        case "pass":
            failpoints.hit("commit.before_transaction")
            print("passed")
        case "fail":
            raise ValueError("as it was told")
        case "wait":
            print("ready", flush=True)
            time.sleep(60)
        case code:
            sys.exit(int(code))
