"""`python -m analemma`: the `analemma` command of this very Python."""

from __future__ import annotations

from analemma.cli import main

if __name__ == "__main__":
    main()
