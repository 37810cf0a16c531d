"""From a state to a payload: what stays, what leaves, and one transaction for all that leaves. Which fields leave is
decided by `budget.plan_payload`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from analemma.bag.tracked import NotLoaded, Tracked
from analemma.canon.build import check_new_key
from analemma.canon.nodes import Block, BlockId
from analemma.canon.trees import Edited
from analemma.catalog.kernel.payloads import LEASE_ID_BYTES, LeaseId, PayloadLease
from analemma.catalog.port import BranchKey
from analemma.context import Context
from analemma.errors import AnalemmaError, Internal, Invalid, Limit
from analemma.payloads.budget import FieldPolicy, Plan, Temperatures, plan_payload
from analemma.payloads.hydrate import HydratedState, LeasedTrees, StoredField, build_field
from analemma.payloads.json import Encoded, encode_field, field_bytes, text_bytes
from analemma.payloads.pointers import PAYLOAD_KEY, ROOM, Note, Pointer

STATE_NAME_BYTES = 16
DELETED_SHARE = 4
"""Names of deleted fields that take more than this part of the target stand behind a pointer."""


class Dehydration:
    """One payload in the making."""

    def __init__(
        self,
        context: Context,
        leased: LeasedTrees,
        temperatures: Temperatures,
        policy: FieldPolicy,
        note: Note,
        forced: AbstractSet[str],
    ) -> None:
        self._context = context
        self._leased = leased
        self._temperatures = temperatures
        self._policy = policy
        self._is_control = policy.is_control
        self._note = note
        self._forced = forced
        self._values: dict[str, Any] = {}
        """The fields that are here."""
        self._stored: Mapping[str, StoredField] = {}
        """Where values are, or were, in the store."""
        self._waiting: set[str] = set()
        """The fields that are still only there."""
        self._json: dict[str, Encoded | None] = {}
        self._trees: dict[str, Edited] = {}
        self._leases: list[PayloadLease] = []
        self._kept: set[LeaseId] = set()
        self._blocks: dict[BlockId, Block] = {}

    def run(self, state: Mapping[str, Any], *, delta: bool) -> dict[str, Any]:
        """The payload of a state; of a state that came from a payload, with `delta`, only what changed since."""
        said = self._collect(state, delta=delta)
        for name in self._values:
            if type(name) is not str:
                raise Invalid(f"a state has a field named by a {type(name).__name__}", hint="field names are strings")
            check_new_key(name, (name,))
        # What names the state, unless it has a name already.
        said.setdefault("state", self._context.entropy.random_bytes(STATE_NAME_BYTES).hex())
        self._note = replace(self._note, **said)
        group = self._kept_group()
        plan = self._plan(group)
        if group is not None and plan.grouped:
            # There can be one group: the old one is taken apart, and what is in it finds its place with the rest.
            self._load([name for name in self._waiting if self._stored[name].pointer is group.pointer])
            group = None
            plan = self._plan(None)
        payload = self._assemble(plan, group)
        size = text_bytes(payload)
        if size > plan.size:
            raise Internal(f"a payload planned with {plan.size} bytes has {size}", bytes=size)
        self._store()
        return payload

    def _collect(self, state: Mapping[str, Any], *, delta: bool) -> dict[str, Any]:
        """Take the fields that go out; what the note says of them."""
        if not isinstance(state, Mapping):
            raise Invalid(f"a state is a mapping of fields, not a {type(state).__name__}", hint="pass a dict")
        origin, note = state.origin if isinstance(state, HydratedState) else None, self._note
        whose = (note.owner_id, note.workflow_id)
        if origin is None or origin.trees is not self._leased or (origin.owner_id, origin.workflow_id) != whose:
            if not isinstance(state, HydratedState) and isinstance(state, Tracked):
                return self._collect_bag(state, delta=delta)
            # Pointers of another workflow are worth nothing here, and neither is a delta against what is there.
            self._values = dict(state.items())
            return {}
        assert isinstance(state, HydratedState)
        self._stored = origin.stored
        if delta:
            self._values, deleted = state.changes(self._tree)
            return {"deleted": deleted, "base": origin.state}
        lazy = state.not_loaded()
        # What others wrote has no pointer of ours to go on with.
        self._waiting = {name for name in lazy if self._stored.get(name) is lazy[name] and not self._is_control(name)}
        state.load(lazy.keys() - self._waiting)
        self._values = {name: value for name, value in dict.items(state) if type(value) is not NotLoaded}
        return {}

    def _collect_bag(self, bag: Any, *, delta: bool) -> dict[str, Any]:
        """The same of a bag; of one that was loaded from a version, with `delta`, only what changed since."""
        version = getattr(bag, "manifest_id", None)
        if version is None or not delta:
            self._values = bag.to_plain()
            return {} if version is None or bag.is_changed else {"state": version}
        changes = bag.get_delta()
        self._values = {name: bag[name] for name in changes.changed_fields if name in bag}
        return {"deleted": tuple(name for name in changes.deleted_fields if name not in bag), "base": version}

    def _json_of(self, name: str) -> Encoded | None:
        """A field as it may stand in the payload; None if it is too large for that, Limit if it must stand there."""
        if name not in self._json:
            policy, stays = self._policy, self._is_control(name)
            limit_bytes = policy.limit_bytes if stays else policy.field_bytes
            made = encode_field(name, self._values[name], self._context.trees.registry, limit_bytes)
            if stays and made is None:
                raise Limit(
                    f"the control field {name!r} alone takes more than {limit_bytes} bytes, or cannot be JSON",
                    hint="control fields never leave the payload: make it smaller, or give a policy without it",
                    field=name,
                    limit=limit_bytes,
                )
            self._json[name] = made
        return self._json[name]

    def _tree(self, name: str, value: Any) -> Edited:
        """A field as it stands in the store behind a pointer of its own."""
        if name not in self._trees:
            self._trees[name] = build_field(self._context.trees, name, value)
        return self._trees[name]

    def _kept_group(self) -> StoredField | None:
        """One of several fields whose pointer can stay as it is: all of them are there, and none was looked at. Fields
        of other groups are loaded."""
        groups: dict[LeaseId, list[str]] = {}
        for name, lazy in self._stored.items():
            if lazy.grouped:
                groups.setdefault(lazy.pointer.lease, []).append(name)
        kept: StoredField | None = None
        for names in sorted(groups.values(), key=len, reverse=True):
            here = [name for name in names if name in self._waiting]
            if kept is None and len(here) == len(names) and not self._forced & set(names):
                kept = self._stored[here[0]]
            elif here:
                self._load(here)
        return kept

    def _load(self, names: Sequence[str]) -> None:
        values = self._leased.values([self._stored[name] for name in names])
        self._values.update(zip(names, values, strict=True))
        self._waiting.difference_update(names)

    def _plan(self, group: StoredField | None) -> Plan:
        policy = self._policy
        workflow = (self._note.owner_id, self._note.workflow_id)
        overflow = None if group is None else group.pointer
        note = replace(self._note, overflow=overflow, deleted=ROOM if self._leaving_names() else self._note.deleted)
        fixed = field_bytes(PAYLOAD_KEY, text_bytes(note.to_json()))
        sizes: dict[str, int | None] = {}
        seen: dict[str, int] = {}
        for name in self._values:
            small = None if name in self._forced or name == PAYLOAD_KEY else self._json_of(name)
            size = None if small is None else field_bytes(name, small.size)
            if self._is_control(name):
                fixed += size or 0
                continue
            if small is not None:
                seen[name] = hash(small.text)
            sizes[name] = size
        for name in self._waiting:
            if not self._stored[name].grouped:
                sizes[name] = None
        return plan_payload(sizes, policy, self._temperatures.weights(workflow, seen), fixed_bytes=fixed)

    def _leaving_names(self) -> list[str]:
        """The names of deleted fields, if they take so much that they leave."""
        deleted = self._note.deleted
        if not isinstance(deleted, tuple) or text_bytes(deleted) <= self._policy.target_bytes // DELETED_SHARE:
            return []
        return list(deleted)

    def _assemble(self, plan: Plan, group: StoredField | None) -> dict[str, Any]:
        note = self._note
        if deleted := self._leaving_names():
            note = replace(note, deleted=self._lease(self._context.trees.build(deleted), None))
        grouped = sorted(plan.grouped)
        if group is not None:
            note = replace(note, overflow=self._keep(group))
        elif grouped:
            self._load([name for name in grouped if name in self._waiting])
            made = self._context.trees.build({name: self._values[name] for name in grouped})
            note = replace(note, overflow=self._lease(made, None))
        payload: dict[str, Any] = {PAYLOAD_KEY: note.to_json()}
        for name in [*self._values, *sorted(self._waiting)]:
            if name in plan.pointed:
                payload[name] = self._point(name).to_json()
            elif name in self._values and name not in plan.grouped and (inline := self._json_of(name)) is not None:
                payload[name] = inline.json
        return payload

    def _point(self, name: str) -> Pointer:
        lazy = self._stored.get(name)
        if name in self._waiting and lazy is not None:
            return self._keep(lazy)
        tree = self._tree(name, self._values[name])
        if lazy is not None and not lazy.grouped and tree.root.id == lazy.pointer.hash:
            return self._keep(lazy)
        return self._lease(tree, name)

    def _lease(self, tree: Edited, name: str | None) -> Pointer:
        """A new lease on a tree that is stored with it."""
        self._blocks.update({block.id: block for block in tree.blocks})
        return self._write(tree.root.id, tree.root.size, name)

    def _keep(self, lazy: StoredField) -> Pointer:
        """A pointer that stays: with its lease if that is of the same execution, otherwise with a new one on the same
        tree. The old lease is held either way until the new payload is written, so the tree cannot go in between."""
        pointer = lazy.pointer
        self._kept.add(pointer.lease)
        if lazy.execution == self._note.execution_id:
            return pointer
        return self._write(pointer.hash, pointer.size_bytes, pointer.field_name)

    def _write(self, root: BlockId, size: int, name: str | None) -> Pointer:
        lease = LeaseId(self._context.entropy.random_bytes(LEASE_ID_BYTES))
        note = self._note
        now_us = self._context.clock.now_us()
        self._leases.append(
            PayloadLease(lease, note.owner_id, note.workflow_id, note.execution_id, root, size, name, now_us)
        )
        return Pointer(root, size, name, lease)

    def _store(self) -> None:
        if not self._leases and not self._kept:
            return
        context, note = self._context, self._note
        blocks = list(self._blocks.values())
        prepared = context.blocks.prepare(blocks, BranchKey(note.owner_id, note.workflow_id), note.execution_id)
        try:
            self._leased.leases.add(self._leases, self._kept, prepared.rows, prepared.uploads)
        except AnalemmaError as exc:
            context.blocks.give_up(prepared.uploads, exc)
            raise
        context.blocks.remember(blocks)
