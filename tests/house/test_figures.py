"""The source grows in no figure that has a limit. `python -m tests.house --lower` makes limits of what became lower; a
limit that is raised says why in `limits.toml`."""

from __future__ import annotations

from tests.house.figures import figures, limits


def test_nothing_is_above_its_limit() -> None:
    found, most = figures(), limits()
    assert {name: set(values) for name, values in found.items()} == {name: set(values) for name, values in most.items()}
    above = {
        f"{section}.{name}": (value, most[section][name])
        for section, values in found.items()
        for name, value in values.items()
        if value > most[section][name]
    }
    assert above == {}
