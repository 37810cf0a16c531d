"""A store in the model: blocks, roots that lead to them, objects that hold some, and what must always be true."""

from __future__ import annotations

from collections.abc import Mapping

from tests.models.actions import BlockRow, SessionRow
from tests.models.collector import ROOTS, Links, below, collector
from tests.models.database import Outcome, Process, State, Turn, Value, World
from tests.models.rules import ALL


class Store(World):
    """A world, and when it is broken."""

    def __init__(
        self,
        links: Links,
        rows: Mapping[str, Value],
        processes: tuple[Process, ...],
        *,
        objects: frozenset[str] = frozenset(),
        serial: bool = False,
        lossy: bool = False,
    ) -> None:
        readable = {f"damage {block}": None for block in links}
        super().__init__({"gc": 0, **readable, **rows}, processes, objects=objects, serial=serial, lossy=lossy)
        self._links = links
        self._blocks = {name.removeprefix("block "): place for name, place in self.table("block")}
        self._below = {block: below(links, block) for block in self._blocks}
        self._roots = tuple(self.table(*ROOTS, "session"))
        self._names = tuple(self.table("head", "tag"))
        self._uploads = {name.removeprefix("upload "): place for name, place in self.table("upload")}
        self._judged: dict[tuple[tuple[Value, ...], frozenset[str]], str | None] = {}

    def violation(self, state: State) -> str | None:
        """Implements `checker.Model`. Only what is committed counts, at every moment."""
        if state.fault is not None:
            return state.fault
        # Most states differ in where processes are, not in what is stored.
        stored = (state.rows, state.objects)
        if stored not in self._judged:
            self._judged[stored] = self._judge(*stored)
        return self._judged[stored]

    def _judge(self, rows: tuple[Value, ...], objects: frozenset[str]) -> str | None:
        for name, place in self._names:
            if rows[place] is not None and rows[self.index[rows[place]]] is None:
                return f"{name} names {rows[place]}, which is gone"
        for name, place in self._roots:
            for block in sorted(self._led_to(rows[place])):
                if rows[self._blocks[block]] is None:
                    return f"{name} leads to block {block}, which is gone"
        for block, place in self._blocks.items():
            row: BlockRow | None = rows[place]
            if row is not None and row.upload is not None and row.upload not in objects:
                return f"block {block} lies in object {row.upload}, which is gone"
        for upload in sorted(objects):
            if rows[self._uploads[upload]] is None:
                return f"object {upload} has no row: nobody will ever find it"
        return None

    def _led_to(self, root: Value) -> frozenset[str]:
        entries = root.blocks if isinstance(root, SessionRow) else root or ()
        return frozenset(block for entry in entries for block in self._below[entry])

    def left_behind(self, state: State) -> str | None:
        """What two passes over a store at rest leave that nobody needs, if anything: a collector that never deletes
        loses nothing either."""
        alone = Store(
            self._links,
            dict(zip(self.names, state.rows, strict=True)),
            (collector("collector", ALL, self._links, blocks=(*self._blocks,), uploads=(*self._uploads,), passes=2),),
            objects=state.objects,
        )
        after = alone.initial()
        program = alone.processes[0].program
        while after.actors[0].at < len(program):
            turn = Turn(alone, after, 0)
            outcome = program[after.actors[0].at].take(turn)
            assert outcome is Outcome.NEXT, "a pass that nobody disturbs runs to its end"
            after = turn.end(outcome).state
        needed = {block for _, place in self._roots for block in self._led_to(after.rows[place])}
        stored = {block: after.rows[place] for block, place in self._blocks.items() if after.rows[place] is not None}
        if stored.keys() != needed:
            return f"two more passes leave {', '.join(sorted(stored.keys() - needed))}, which nothing leads to"
        idle = after.objects - {row.upload for row in stored.values()}
        return f"two more passes leave object {', '.join(sorted(idle))}, which no block names" if idle else None
