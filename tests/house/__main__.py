"""`python -m tests.house`: print the figures beside their limits; `--lower` makes a lower figure the new limit."""

from __future__ import annotations

import sys

from tests.house.figures import LIMITS, figures, limits


def main(arguments: list[str]) -> int:
    found, most = figures(), limits()
    for section, values in found.items():
        for name, value in values.items():
            print(f"{section + '.' + name:24} {value:7,}   limit {most[section][name]:7,}")
    if arguments == ["--lower"]:
        lines = LIMITS.read_text().splitlines()
        section = ""
        for place, line in enumerate(lines):
            if line.startswith("["):
                section = line.strip("[]")
            elif " = " in line:
                name, limit = line.split(" = ")
                lines[place] = f"{name} = {min(int(limit), found[section][name])}"
        LIMITS.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
