"""After a save: the bag stands for the version it became, and what was put into it is tracked from now on.

Containers that the user put in become tracked ones if nobody else holds them; then nobody can tell. One that somebody
holds stays the same object, and is watched. What was taken out of the bag stays with the version it was in."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from analemma.bag.changes import Changes, form_of
from analemma.bag.tracked import Base, NotLoaded, Place, Tracked, held_elsewhere, never_changes, stored_at
from analemma.bag.tracked_dict import TrackedDict
from analemma.bag.tracked_list import ListShell, TrackedList, new_place
from analemma.canon.diff import Gap
from analemma.canon.nodes import BlockId
from analemma.canon.pointer import Operation, Path
from analemma.canon.read import MISSING
from analemma.canon.trees import Trees
from analemma.errors import AnalemmaError
from analemma.state.arguments import DeltaUpdate, read_delta
from analemma.state.contents import apply_update, empty_state


def _at(bag: TrackedDict, path: Path) -> Any:
    """What stands at a path of a bag."""
    value: Any = bag
    for token in path:
        value = value[int(token)] if isinstance(value, list) else value[token]
    return value


def follow(bag: TrackedDict, operations: Iterable[Operation]) -> None:
    """Make the changes of others to the bag itself, so that containers that were handed out show them too."""
    for op, path, value in operations:
        container = _at(bag, path[:-1])
        key: Any = int(path[-1]) if isinstance(container, list) else path[-1]
        if op == "remove":
            del container[key]
        elif op == "add" and isinstance(container, list):
            container.insert(key, value)
        else:
            container[key] = value


def take(bag: TrackedDict, trees: Trees, changes: Mapping[str, Any] | DeltaUpdate) -> None:
    """Make changes, as a save takes them, to a bag as it was loaded."""
    root = bag._base.root
    if root is None:
        trees, empty = empty_state(trees)
        root = empty.root.id
    edited = apply_update(trees, root, read_delta(changes))
    follow(bag, trees.over(edited.by_id).diff(root, edited.root.id))


def replaced(bag: TrackedDict, operations: Iterable[Operation]) -> Iterator[Any]:
    """What stands where each operation replaces or removes something. Each is about the state that those before it lead
    to: so they are followed, one by one."""
    for operation in operations:
        yield None if operation.op == "add" else copy.deepcopy(_at(bag, operation.path))
        follow(bag, [operation])


def separate(bag: TrackedDict, differing: Iterable[Path], trees: Trees, root: BlockId, length: int) -> None:
    """Give the bag containers of its own at these places, cut to a length, with what the tree has there: one container
    that stands at several places cannot follow what others did to one of them. A list stays the same object, unless
    the length is 1: then nothing is changed but the bag's own fields."""
    places = sorted({_fields_only(bag, path[:length]) for path in differing})
    values = trees.get_many(root, places)
    for path in places:
        container = _at(bag, path[:-1])
        value, present = values.get(path), container.get(path[-1])
        if path not in values:
            container.pop(path[-1], None)
        elif length > 1 and isinstance(present, list) and isinstance(value, list):
            present[:] = value
        else:
            container[path[-1]] = value


def _fields_only(bag: TrackedDict, path: Path) -> Path:
    """As much of a path as leads through dicts: positions in lists shift while operations are applied."""
    container: object = bag
    for number, token in enumerate(path):
        if not isinstance(container, dict):
            return path[:number]
        container = container.get(token)
    return path


def settle(bag: TrackedDict, changes: Changes, manifest: BlockId, root: BlockId) -> None:
    """Make the version that the bag was saved as its base. Costs what the save did, not what the bag holds; raises
    nothing that the store could cause."""
    _Settler(bag._base, changes).settle(bag, manifest, root)


class _Settler:
    def __init__(self, base: Base, changes: Changes) -> None:
        self._base = base
        self._visited = changes.visited
        self._forms = changes.watched
        self._reached: dict[int, Tracked] = {}
        self._attached: set[int] = set()
        self._removed: list[Any] = []
        """What the base had, and does not stand where it stood: containers among it stay behind with the version."""
        self._adopted: list[Tracked] = []
        self._watching: list[tuple[Tracked, Any, Any]] = []

    def settle(self, bag: TrackedDict, manifest: BlockId, root: BlockId) -> None:
        self._attached.add(id(bag))
        self._reach(bag)
        self._leave_behind()
        self._base.manifest, self._base.root = manifest, root
        for container in self._reached.values():
            path = self._visited[id(container)][1]
            if not isinstance(container._wire, Place):
                self._base.placed.append(weakref.ref(container))
            container._wire = Place(root, path)
            container._depth = len(path)
        for container, key, value in self._watching:
            container._watched[key] = None
            with suppress(AnalemmaError):
                container._watched[key] = form_of(value, self._base)
        for item in self._removed:
            if isinstance(item, Tracked):
                _forget_parents(item)
        settled = [*self._reached.values(), *self._adopted]
        for container in settled:
            container._touched = {}
            container._dirty = False
        # What watches something is dirty again at once, and so is everything above it.
        for container in [*settled, *[parent for parent, _, _ in self._watching]]:
            if container._watched:
                container._mark()

    def _reach(self, container: Tracked) -> None:
        """Settle a container that stands in the bag, and those in it that were looked into."""
        if id(container) in self._reached or id(container) not in self._visited:
            return
        self._reached[id(container)] = container
        # Only of what moves on: a container that stays with its version is compared with that version again.
        container._watched.update(self._forms.get(id(container), {}))
        depth = len(self._visited[id(container)][1]) + 1
        if isinstance(container, TrackedDict):
            self._reach_dict(container, depth)
        elif isinstance(container, TrackedList):
            self._reach_list(container, depth)

    def _reach_kept(self, container: Tracked, kept: list[tuple[Any, Any, Any]]) -> None:
        """Settle what stands where it stood. Nothing of it is held afterwards: who else holds what the container holds
        is about to be asked."""
        for place, _, value in kept:
            if isinstance(value, Tracked):
                if value._base is self._base:
                    self._attached.add(id(value))
                    self._reach(value)
                elif place not in container._watched:
                    self._watching.append((container, place, value))
        kept.clear()

    def _reach_dict(self, container: TrackedDict, depth: int) -> None:
        self._reach_kept(container, container._kept())
        originals, container._originals = container._originals, {}
        shell, fields = container._shell, container._fields
        for key, original in originals.items():
            if dict.get(fields, key, MISSING) is original:
                continue
            self._removed.append(original)
            container._watched.pop(key, None)
            if shell is not None and (shell.fields[key] is MISSING or _nobody_holds(shell.fields, key)):
                del shell.fields[key]
            elif dict.__contains__(fields, key):
                dict.__setitem__(fields, key, self._take(container, key, fields, key, depth))
        if shell is not None:
            shell.added = {}
            shell.small = None
        self._watch_again(container, fields, depth)

    def _reach_list(self, container: TrackedList, depth: int) -> None:
        gaps, shell = container._gaps(), container._shell
        kept = container._kept(gaps)
        container._watched = {place: container._watched[old] for place, old, _ in kept if old in container._watched}
        self._reach_kept(container, kept)
        if shell is not None:
            self._removed += [item for item in shell.overlay.values() if isinstance(item, Tracked)]
            self._reach_shell(container, shell, gaps, depth)
        elif gaps or container._watched:
            for gap in gaps:
                self._removed += container._shadow[gap.old_start : gap.old_stop]
            container._shadow = []
            for gap in gaps:
                for place in range(gap.new_start, gap.new_stop):
                    list.__setitem__(container, place, self._take(container, place, container, place, depth))
            self._watch_again(container, container, depth)
            container._shadow = list(list.__iter__(container))
            if NotLoaded in set(map(type, container._shadow)):
                for place, item in enumerate(container._shadow):
                    if type(item) is NotLoaded:
                        item.place = place

    def _reach_shell(self, container: TrackedList, shell: ListShell, gaps: list[Gap], depth: int) -> None:
        settled = ListShell(shell.runs.length)
        for place, value in shell.overlay.items():
            kept = new_place(gaps, place)
            if kept is not None:
                settled.overlay[kept] = value
                if isinstance(value, Tracked):
                    self._attached.add(id(value))
        shell.overlay.clear()
        value = None
        self._watch_again(container, settled.overlay, depth)
        start = 0
        for run in shell.runs:
            for offset in range(len(run) if isinstance(run, list) else 0):
                # What nobody holds can be read again when it is asked for.
                if not _nobody_holds(run, offset):
                    settled.overlay[start + offset] = self._take(container, start + offset, run, offset, depth)
            start += len(run)
        container._shell = settled

    def _watch_again(self, container: Tracked, storage: Any, depth: int) -> None:
        """Watch only what somebody holds by now: otherwise every save would go on comparing everything that ever was
        put in by a variable. What nobody holds is forgotten by a shell, and adopted by what is loaded."""
        kind: Any = list if isinstance(storage, list) else dict
        for place in list(container._watched):
            if not _is_plain(storage, place) or held_elsewhere(storage, place):
                continue
            if container._shell is None:
                adopted = self._adopt(stored_at(storage, place), depth)
                kind.__setitem__(storage, place, _attach(container, adopted, place))
                del container._watched[place]
            elif _nobody_holds(storage, place):
                del storage[place], container._watched[place]

    def _take(self, parent: Tracked, watch_key: Any, storage: Any, at: Any, depth: int) -> Any:
        """A value that was put into the parent, as it is to stand there from now on."""
        held = held_elsewhere(storage, at)
        value = stored_at(storage, at)
        if type(value) is NotLoaded or never_changes(value):
            return value
        if isinstance(value, Tracked) and value._base is self._base:
            self._attached.add(id(value))
            _attach(parent, value, watch_key)
            self._reach(value)
            return value
        if not held and type(value) in (dict, list):
            return _attach(parent, self._adopt(value, depth), watch_key)
        self._watching.append((parent, watch_key, value))
        return value

    def _adopt(self, value: Any, depth: int) -> Tracked:
        """A tracked container in the place of a plain one that nobody else holds."""
        made: Any
        if isinstance(value, dict):
            made = TrackedDict._made(self._base, None, depth)
            for key in value:
                dict.__setitem__(made, key, self._take(made, key, value, key, depth + 1))
        else:
            made = TrackedList._made(self._base, None, depth)
            for place in range(len(value)):
                list.append(made, self._take(made, place, value, place, depth + 1))
            made._shadow = list(list.__iter__(made))
            self._base.lists.append(weakref.ref(made))
        self._adopted.append(made)
        return made  # type: ignore[no-any-return]

    def _leave_behind(self) -> None:
        """Let what was taken out of the bag stay with the version that has it."""
        left = Base(self._base.store, self._base.manifest, self._base.root)
        stack = list(self._removed)
        gone: list[Tracked] = []
        while stack:
            item = stack.pop()
            if not isinstance(item, Tracked) or item._base is not self._base or id(item) in self._attached:
                continue
            item._base = left
            gone.append(item)
            if isinstance(item, TrackedList) and item._shell is None:
                left.lists.append(weakref.ref(item))
            stack += [value for _, value in item._at_hand()]
            stack += item._base_children()
        for item in gone:
            for reference, key in item._parents:
                parent = reference()
                # Taken out in one place, and left in another: there it is watched from now on.
                if parent is not None and parent._base is self._base:
                    self._watching += [(parent, place, item) for place in parent._places_of(item, key)]


def _attach(parent: Tracked, child: Tracked, place: Any) -> Tracked:
    """Have a dict or list be told of a child's changes from now on; the child."""
    reference, key = weakref.ref(parent), place if isinstance(parent, dict) else id(child)
    # References are compared by identity: equal ones would compare what they refer to.
    if not any(known is reference and known_key == key for known, known_key in child._parents):
        child._parents.append((reference, key))
    if child._dirty:
        parent._touched[key] = child
    return child


def _forget_parents(item: Tracked) -> None:
    """Tell only those of changes in which it still stands: what is moved about would tell more and more."""
    item._parents = [
        (reference, key)
        for reference, key in item._parents
        if (parent := reference()) is not None and parent._places_of(item, key)
    ]


def _is_plain(storage: Any, at: Any) -> bool:
    """Whether a plain dict or list stands there."""
    there = isinstance(storage, list) or dict.__contains__(storage, at)
    return there and type(stored_at(storage, at)) in (dict, list)


def _nobody_holds(storage: Any, at: Any) -> bool:
    """Whether what stands there, and everything in it, is held by nobody else: then it can be forgotten."""
    held, value = held_elsewhere(storage, at), stored_at(storage, at)
    if held or type(value) not in (dict, list):
        return never_changes(value)
    return all(_nobody_holds(value, key) for key in (value if type(value) is dict else range(len(value))))
