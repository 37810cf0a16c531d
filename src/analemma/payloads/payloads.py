"""`app.payloads`: states that travel between functions as small JSON, with pointers in place of what is large; and
functions of states as handlers of events: hydrate in, run, dehydrate out."""

from __future__ import annotations

import hashlib
import inspect
import json
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, Literal, TypeVar

from analemma.bag.changes import packed_form
from analemma.bag.tracked import NotLoaded
from analemma.canon.pointer import Path, list_index
from analemma.canon.read import MISSING, Nodes
from analemma.catalog.kernel.payloads import PayloadLease
from analemma.clock import Clock
from analemma.context import Context
from analemma.errors import Conflict, Denied, Invalid, Limit, NotFound
from analemma.payloads.budget import KIB, FieldPolicy, Temperatures
from analemma.payloads.dehydrate import STATE_NAME_BYTES, Dehydration
from analemma.payloads.foreign import ForeignObjects
from analemma.payloads.hydrate import Arrival, HydratedState, LeasedTrees, StoredField
from analemma.payloads.json import Decoder, encode_field, field_bytes, text_bytes, too_large
from analemma.payloads.pointers import (
    PAYLOAD_KEY,
    Note,
    Pointer,
    is_pointer,
    parse_note,
    parse_pointer_form,
    said_by,
)
from analemma.payloads.rings import DEFAULT_RING, FilteredEvent, FilterReport, RingPolicy, visible_fields
from analemma.state.arguments import check_name, check_segment
from analemma.state.contents import path_of
from analemma.state.kernel import Kernel

T = TypeVar("T")
Route = Literal["whole", "partial"]

SMALL_BYTES = 10 * KIB
"""What is smaller is read whole, whatever is wanted of it."""
SLOW_SMALL_BYTES = 50 * KIB
"""The same while partial reads take more than twice as long as whole ones."""
MIDDLE_BYTES = 50 * KIB
"""From here on a middling share is read in part."""
MOST_SHARE, LEAST_SHARE = 0.8, 0.2
ADJUST_EVERY_S = 3600.0
SLOW_FACTOR = 2.0

WRAPPERS = ("state_data", "state_bag")
"""Keys under which orchestrators hand a state over, when the event itself is no payload."""


class Payloads:
    """The payloads of one tenant. Safe to share between threads."""

    def __init__(self, context: Context, kernel: Kernel, foreign: ForeignObjects) -> None:
        settings = context.settings
        self.policy = FieldPolicy(
            field_bytes=settings.payload_field_bytes,
            target_bytes=settings.payload_target_bytes,
            limit_bytes=settings.payload_limit_bytes,
        )
        """Which fields stay, which leave first, and the thresholds."""
        self.router = ReadRouter(context.clock)
        """How `load_fields_selective` reads, and how often each way."""
        self._context = context
        self._kernel = kernel
        self._foreign = foreign
        self._event_bytes = settings.payload_event_bytes
        self._leased = LeasedTrees(context)
        self._temperatures = Temperatures()

    def dehydrate(
        self,
        state: Mapping[str, Any],
        *,
        owner_id: str,
        workflow_id: str,
        execution_id: str,
        segment_id: int | None = None,
        force_offload_fields: Iterable[str] | None = None,
        return_delta: bool = True,
        policy: FieldPolicy | None = None,
    ) -> dict[str, Any]:
        """The state as a small JSON object: what is large stays in the store, behind pointers that are good until
        `release`. Of a state that came from `hydrate`, with `return_delta`, only what changed since."""
        note = Note(
            check_name(owner_id, "owner"),
            check_name(workflow_id, "workflow"),
            check_name(execution_id, "execution"),
            None if segment_id is None else check_segment(segment_id),
        )
        policy = policy or self.policy
        forced = field_names(force_offload_fields, "force_offload_fields")
        for name in sorted(forced & policy.control_fields):
            raise Invalid(f"{name!r} is a control field, and those never leave", hint="leave it out of the list")
        making = Dehydration(self._context, self._leased, self._temperatures, policy, note, forced)
        return making.run(state, delta=return_delta)

    def hydrate(
        self,
        event: Mapping[str, Any],
        *,
        load_fields: Iterable[str] | None = None,
        skip_fields: Iterable[str] | None = None,
        owner_id: str | None = None,
        workflow_id: str | None = None,
        base: Mapping[str, Any] | None = None,
    ) -> HydratedState:
        """The state of an event: a payload, alone or under `state_data` or `state_bag`. Fields behind pointers load on
        first access; `load_fields` at once, together; `skip_fields` are left out.

        A delta needs the event that its changes were made to, as `base`: Conflict for any other. Denied if a pointer is
        not of this tenant, owner and workflow: as named here, else as the event says of itself. Nothing is loaded
        before all of it was checked."""
        skip = field_names(skip_fields, "skip_fields")
        wanted = field_names(load_fields, "load_fields")
        state = self._arrive(event, skip, owner_id, workflow_id, base is not None)
        note = _arrival(state).note
        if note.delta and base is not None:
            under = self.hydrate(base, skip_fields=skip, owner_id=note.owner_id, workflow_id=note.workflow_id)
            if _arrival(under).state != note.base:
                raise Conflict(
                    "the delta was made from another state than that of `base`",
                    hint="pass the event that was hydrated before the changes were made",
                )
            state = self._merged(under, state, skip)
        state.load(wanted - skip)
        return state

    def release(self, *, execution_id: str, owner_id: str, workflow_id: str) -> int:
        """End an execution; how many leases it had. Its pointers are worth nothing from now on, and what only they led
        to may be collected. Whoever comes late and makes a payload with pointers for it is Denied, so nothing is left
        that nobody would release; releasing it again changes nothing."""
        return self._leased.leases.release(
            check_name(owner_id, "owner"),
            check_name(workflow_id, "workflow"),
            check_name(execution_id, "execution"),
            self._context.clock.now_us(),
        )

    def leases(
        self, *, owner_id: str | None = None, workflow_id: str | None = None, execution_id: str | None = None
    ) -> list[PayloadLease]:
        """The live leases of one execution, of all of a workflow's, of an owner's, or of everybody's. They end with
        `release`; without it, by collection: when the run of the execution's id is over, or when none of the
        execution's was made or used for `payload_lease_s` of the settings, and nothing that goes on may need them."""
        if (execution_id is not None and workflow_id is None) or (workflow_id is not None and owner_id is None):
            raise Invalid(
                "an execution is one of a workflow, and a workflow one of an owner",
                hint="pass owner_id with workflow_id, and both with execution_id",
            )
        named = {"owner": owner_id, "workflow": workflow_id, "execution": execution_id}
        whose = [check_name(name, what) for what, name in named.items() if name is not None]
        return list(self._leased.leases.live(*whose))

    def load_fields_selective(
        self,
        source: str | Mapping[str, Any],
        fields: Iterable[str],
        *,
        auto_routing: bool = True,
        owner_id: str | None = None,
        workflow_id: str | None = None,
    ) -> dict[str, Any]:
        """Some fields (names or JSON pointers) of a version, or of the value behind a pointer, read as a whole or in
        part, whichever is likely to be faster. Fields that are not there are left out."""
        if isinstance(fields, str):
            raise Invalid("fields is one string", hint="pass a list of names or pointers")
        paths = {name: path_of(name) for name in fields}
        wanted = len({path[:1] for path in paths.values()})
        trees = self._context.trees
        if isinstance(source, str):
            commits, row = self._kernel._commits, self._kernel._row(source, owner_id)
            if workflow_id not in (None, row.key.workflow):
                raise NotFound(f"workflow {workflow_id!r} has no manifest {source}", manifest=source)
            root = commits.manifest(row.id).root
            size, total, top = root.size, root.count, root.id
            guarded = partial(commits.guarded, row.id)
        elif not isinstance(source, Mapping):
            raise Invalid(
                f"a {type(source).__name__} is no version and no pointer", hint="pass a manifest id or a pointer"
            )
        else:
            pointer = parse_pointer_form(dict(source), source.get("field_name"))
            self._leased.use([pointer], owner_id, workflow_id)
            size, top = pointer.size_bytes, pointer.hash
            guarded = partial(self._leased.guarded, [pointer])
            total = guarded(lambda: Nodes(trees.fetch).get(top).length)
        route = self.router.choose(size, wanted, total, auto_routing=auto_routing)
        started = self._context.clock.monotonic()
        if route == "whole":
            value = guarded(lambda: trees.read(top))
            read: Mapping[Any, Any] = {path: pick(value, path) for path in paths.values()}
        else:
            read = guarded(lambda: trees.get_many(top, paths.values()))
        self.router.measured(route, started)
        return {name: read[path] for name, path in paths.items() if read.get(path, MISSING) is not MISSING}

    def filter_event_payload(
        self,
        event: Mapping[str, Any],
        segment_config: Mapping[str, Any],
        security_ring: str = DEFAULT_RING,
        *,
        policy: RingPolicy | None = None,
    ) -> FilteredEvent:
        """The event with only those fields that the segment's nodes may see in this ring. Nothing granted, nothing
        seen; `report` says what went. Of a state under `state_data` or `state_bag`, its fields are what counts: naming
        the key grants none of them."""
        if not isinstance(event, Mapping) or isinstance(event, HydratedState):
            raise Invalid(f"an event is a JSON object, not a {type(event).__name__}", hint="filter before hydrating")
        for name in event:
            if type(name) is not str:
                raise Invalid(f"the event has a key of type {type(name).__name__}", hint="keys are strings")
        visible = visible_fields(segment_config, security_ring, policy)
        before = self._bytes_of(event)
        kept = self._visible_part(event, visible)
        removed_inside: list[str] = []
        # Under a wrapper's key may stand a field of that name, or a state.
        for name in [] if PAYLOAD_KEY in event else [key for key in WRAPPERS if self._is_state(event.get(key))]:
            inside = self._visible_part(event[name], visible)
            removed_inside += [inner for inner in event[name] if inner not in inside and inner != PAYLOAD_KEY]
            kept.pop(name, None)
            if inside:
                kept[name] = inside
        removed = [name for name in event if name not in kept and name != PAYLOAD_KEY] + removed_inside
        return FilteredEvent(kept, FilterReport(security_ring, before, self._bytes_of(kept), tuple(removed)))

    def _visible_part(self, event: Mapping[str, Any], visible: frozenset[str]) -> dict[str, Any]:
        """A payload's note goes along, so that its pointers can be read; but not the pointer to fields that are
        together behind it. Those of them that are visible are taken out and stand in the event themselves."""
        kept = {name: value for name, value in event.items() if name in visible and name != PAYLOAD_KEY}
        if PAYLOAD_KEY not in event or not visible:
            return kept
        state = self._arrive({PAYLOAD_KEY: event[PAYLOAD_KEY]}, frozenset(), None, None, True)
        inside = [name for name in state if name in visible]
        state.load(inside)
        for name in inside:
            made = encode_field(name, state[name], self._context.trees.registry, self.policy.limit_bytes)
            if made is None:
                raise Limit(
                    f"field {name!r} does not fit into the filtered event",
                    hint="filter the state before it is dehydrated",
                    limit=self.policy.limit_bytes,
                )
            kept[name] = made.json
        note = _arrival(state).note
        # Names tell something too.
        shown = tuple(name for name in self._leased.names_of(note.deleted) if name in visible)
        return {PAYLOAD_KEY: replace(note, overflow=None, deleted=shown).to_json(), **kept}

    def _is_state(self, value: Any) -> bool:
        """Whether there are fields; a pointer stands for a field of its name, and its own keys are nobody's state."""
        return isinstance(value, dict) and not is_pointer(value) and not self._foreign.recognise(value)

    def _bytes_of(self, event: Mapping[str, Any]) -> int:
        """How many bytes the fields of an event take as JSON; Limit if one takes more than an event may have."""
        total, limit_bytes = 0, self._event_bytes
        for name, value in event.items():
            try:
                size = text_bytes(value)
            except ValueError:
                # It contains itself.
                raise too_large(limit_bytes) from None
            except (TypeError, RecursionError):
                made = encode_field(name, value, self._context.trees.registry, limit_bytes)
                size = limit_bytes if made is None else made.size
            if size > limit_bytes:
                raise too_large(limit_bytes)
            total += field_bytes(name, size)
        return total

    def _arrive(
        self, event: Any, skip: frozenset[str], owner_id: str | None, workflow_id: str | None, has_base: bool
    ) -> HydratedState:
        """The state of an event, of which nothing is believed: its large fields are still in the store."""
        outer = event
        if not isinstance(event, dict):
            raise Invalid(f"an event is a JSON object, not a {type(event).__name__}", hint="pass the event as it came")
        if PAYLOAD_KEY not in event:
            wrapped = next((event[key] for key in WRAPPERS if isinstance(event.get(key), dict)), None)
            event = wrapped if self._is_state(wrapped) else event
        note = parse_note(event[PAYLOAD_KEY]) if PAYLOAD_KEY in event else Note("", "", "")
        owner = _agreed("owner", owner_id, note.owner_id, event, outer, "ownerId")
        workflow = _agreed("workflow", workflow_id, note.workflow_id, event, outer, "workflowId")
        execution = note.execution_id or said_by(event, "execution_id") or said_by(outer, "execution_id")
        trees = self._context.trees
        decoder = Decoder(trees.registry, trees.unknown, limit_bytes=self._event_bytes)
        values: dict[str, Any] = {}
        fields: dict[str, StoredField | bytes | None] = {}
        pointers: dict[str, Pointer] = {}
        for name, value in event.items():
            if type(name) is not str:
                raise Invalid(f"the event has a key of type {type(name).__name__}", hint="keys are strings")
            if name == PAYLOAD_KEY or name in skip:
                continue
            if is_pointer(value):
                pointers[name] = parse_pointer_form(value, name)
            elif self._foreign.recognise(value):
                values[name] = NotLoaded(self._foreign.field(name, value))
                fields[name] = None
            else:
                values[name] = decoder.decode(name, value)
                fields[name] = packed_form(values[name], trees.registry, (name,))
        if note.delta and not has_base:
            raise Invalid("the event is a delta", hint="pass the event that it was made from as `base`")
        for name, lazy in self._stored(pointers, note, owner, workflow):
            if name in fields:
                raise Invalid(f"field {name!r} is in the event twice", hint="pass payloads on as they came")
            if name not in skip:
                values[name], fields[name] = NotLoaded(lazy), lazy
        named = note.state or self._name_of(event)
        return HydratedState(values, Arrival(self._leased, note, owner, workflow, execution, named, fields))

    def _name_of(self, event: dict[str, Any]) -> str:
        """An event that we did not write is named by what it holds; one that is no JSON like no other."""
        try:
            return hashlib.sha256(json.dumps(event, sort_keys=True).encode()).hexdigest()
        except (TypeError, ValueError, RecursionError):
            return self._context.entropy.random_bytes(STATE_NAME_BYTES).hex()

    def _stored(
        self, pointers: Mapping[str, Pointer], note: Note, owner_id: str | None, workflow_id: str | None
    ) -> Iterator[tuple[str, StoredField]]:
        """Where an event's fields are in the store, if all its pointers are good."""
        together = [each for each in (note.overflow, note.deleted) if isinstance(each, Pointer)]
        asked = [*pointers.values(), *together]
        if asked and (owner_id is None or workflow_id is None):
            raise Denied(
                "the event has pointers, and nothing says whose they are",
                hint="pass owner_id and workflow_id, or send ownerId and workflowId in the event",
            )
        leases = self._leased.use(asked, owner_id, workflow_id)
        for name, pointer in pointers.items():
            yield name, StoredField(pointer, leases[pointer.lease].execution)
        if note.overflow is not None:
            yield from self._leased.fields_of(note.overflow, leases[note.overflow.lease].execution).items()

    def _merged(self, under: HydratedState, over: HydratedState, skip: frozenset[str]) -> HydratedState:
        """A delta's fields in place of those of its base, without those that it deletes. The base's fields keep their
        places in the store."""
        below, above = _arrival(under), _arrival(over)
        gone = skip.union(over, self._leased.names_of(above.note.deleted))

        def merged(base: Mapping[str, T], changed: Mapping[str, T]) -> dict[str, T]:
            return {name: value for name, value in base.items() if name not in gone} | dict(changed)

        values = merged(dict(dict.items(under)), dict(dict.items(over)))
        return HydratedState(values, replace(above, fields=merged(below.fields, above.fields)))


def _arrival(state: HydratedState) -> Arrival:
    assert state.origin is not None
    return state.origin


def _agreed(
    what: str, asked: str | None, noted: str, event: Mapping[str, Any], outer: Mapping[str, Any], control: str
) -> str | None:
    """Whose the event is: as the caller says, and then the note must say the same; else as the note says; else as a
    control field does."""
    if asked is not None:
        check_name(asked, what)
        if noted not in ("", asked):
            raise Denied(f"the event is of another {what}", hint="it was made for someone else")
        return asked
    return noted or said_by(event, control) or said_by(outer, control)


def field_names(names: Iterable[str] | None, what: str) -> frozenset[str]:
    """The names that a caller passed as `what`; Invalid if they are none."""
    if names is None:
        return frozenset()
    if isinstance(names, str):
        raise Invalid(f"{what} is one string", hint="pass a set of field names")
    found = frozenset(names)
    if not all(isinstance(name, str) for name in found):
        raise Invalid(f"{what} has something that is no name", hint="pass a set of field names")
    return found


@dataclass(frozen=True, slots=True)
class HandlerOptions:
    """How a handler treats its events. Names that are not given here come from each event."""

    load_fields: Collection[str] = ()
    skip_fields: Collection[str] = ()
    """Fields that the function is not shown; they go on as they came, unless it sets them itself."""
    force_offload_fields: Collection[str] = ()
    return_delta: bool = False
    """Give back only what changed; whoever calls must merge it. Otherwise the whole state, ready for the next."""
    owner_id: str | None = None
    workflow_id: str | None = None
    execution_id: str | None = None
    segment_id: int | None = None

    def __post_init__(self) -> None:
        # Once: of a generator, the second event would find nothing left.
        for name in ("load_fields", "skip_fields", "force_offload_fields"):
            object.__setattr__(self, name, field_names(getattr(self, name), name))

    def wrap(self, function: Callable[..., Any], payloads: Callable[[], Payloads]) -> Callable[..., Any]:
        """The function as a handler of events: its first argument is the event, all others are passed on.

        What it returns is the new state; None means the state that it was given, as it is then. An exception passes
        through, and nothing was leased. `payloads` is called with the first event, so importing a handler opens
        nothing."""
        if inspect.iscoroutinefunction(function):
            # Most handlers are no coroutines, and are started often.
            import asyncio

            @wraps(function)
            async def handle_async(event: Any, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
                state, leave = await asyncio.to_thread(self._arrive, payloads, event)
                result = await function(state, *args, **kwargs)
                return await asyncio.to_thread(leave, result)

            return handle_async

        @wraps(function)
        def handle(event: Any, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
            state, leave = self._arrive(payloads, event)
            return leave(function(state, *args, **kwargs))

        return handle

    def _arrive(
        self, payloads: Callable[[], Payloads], event: Any
    ) -> tuple[HydratedState, Callable[[Any], dict[str, Any]]]:
        """The state of an event, and what makes a payload of a function's result."""
        opened = payloads()
        # Not by `skip_fields` of hydrate: what the function does not see it did not decide to drop, and has to go on.
        # It stays as it stood in the state's own storage: what was not loaded is still in the store.
        state = opened.hydrate(event, owner_id=self.owner_id, workflow_id=self.workflow_id)
        hidden = {name: dict.pop(state, name) for name in list(state) if name in self.skip_fields}
        state.load(self.load_fields)
        # Before the function runs: what it does may not be undone by an error that comes after it.
        names = self._names(state)

        def leave(result: Any) -> dict[str, Any]:
            if result is not None and not isinstance(result, Mapping):
                raise Invalid(
                    f"the handler returned a {type(result).__name__}",
                    hint="return the new state, or None for the one it was given",
                )
            leaving: Mapping[str, Any] = state if result is None else result
            delta = self.return_delta
            if leaving is state:
                dict.update(state, {name: value for name, value in hidden.items() if name not in state})
            elif hidden:
                # Another state, and whole: with what it never saw, as that is in the store.
                leaving = HydratedState(hidden | dict(leaving.items()), state.origin)
                delta = False
            forced = self.force_offload_fields
            return opened.dehydrate(
                leaving, **names, segment_id=self.segment_id, force_offload_fields=forced, return_delta=delta
            )

        return state, leave

    def _names(self, state: HydratedState) -> dict[str, Any]:
        """Whose payload it will be: as the decorator says, or as the event said of itself."""
        names = ("owner_id", "workflow_id", "execution_id")
        said = {name: getattr(self, name) or getattr(state.origin, name) for name in names}
        for name in [name for name, value in said.items() if not value]:
            raise Invalid(
                f"nothing says the {name} of this event",
                hint="name it in the decorator, or send ownerId, workflowId and execution_id",
            )
        return {name: str(value) for name, value in said.items()}


class ReadRouter:
    """Chooses, measures, and once an hour draws its conclusions. Safe to share between threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._adjusted_at = clock.monotonic()
        self._took: dict[Route, tuple[float, int]] = {}
        """How long the reads of this hour took together, and how many there were."""
        self.small_bytes = SMALL_BYTES
        """What counts as small now."""
        self.counts: dict[Route, int] = {"whole": 0, "partial": 0}
        """How often each way was taken."""

    def choose(self, size_bytes: int, wanted: int, total: int, *, auto_routing: bool = True) -> Route:
        """The way to read `wanted` of `total` fields of so many bytes. Without `auto_routing` only the size decides."""
        if not auto_routing:
            return "whole" if size_bytes < SMALL_BYTES else "partial"
        share = wanted / max(total, 1)
        if size_bytes < self.small_bytes or share > MOST_SHARE:
            return "whole"
        return "partial" if share < LEAST_SHARE or size_bytes >= MIDDLE_BYTES else "whole"

    def measured(self, route: Route, started: float) -> None:
        """Take note of a read that began at this moment of the clock and has ended now."""
        with self._lock:
            now = self._clock.monotonic()
            self.counts[route] += 1
            total_s, count = self._took.get(route, (0.0, 0))
            self._took[route] = total_s + now - started, count + 1
            if now - self._adjusted_at >= ADJUST_EVERY_S and len(self._took) == 2:
                whole_s, partial_s = [self._took[each][0] / self._took[each][1] for each in self.counts]
                self.small_bytes = SLOW_SMALL_BYTES if partial_s > SLOW_FACTOR * whole_s else SMALL_BYTES
                self._adjusted_at, self._took = now, {}


def pick(value: Any, path: Path) -> Any:
    """What stands at a path of a value that is here; MISSING if nothing does. Paths go through dicts and lists, as they
    do in the store."""
    for token in path:
        if type(value) is dict:
            value = value.get(token, MISSING)
        elif type(value) is list:
            try:
                value = value[list_index(token, len(value))]
            except (IndexError, Invalid):
                return MISSING
        else:
            return MISSING
    return value
