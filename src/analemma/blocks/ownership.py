"""Objects belong to one catalog. A marker among them names it, and a generation that each pass of a collector raises:

    1. the catalog intends the next generation, with a random token      AFTER_INTENT
    2. the marker is replaced, if it still says what the catalog knows   AFTER_MARKER
    3. the catalog confirms it                                           AFTER_GENERATION

A dump that was restored, or a database made of a template, is another catalog by its identity. A clone of the disk is
not, but of the two only one raises the marker: what the other knows is then neither the old generation nor its own
intent. Before a pass expires, dooms, claims or deletes anything, the two must agree; whoever does not own the objects
reads them, and writes below a folder of its own: `OwnedObjects` is a store's objects by these rules."""

from __future__ import annotations

import heapq
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar

from analemma.blocks.port import ObjectInfo, ObjectStore, StoreWrapper, check_key, check_prefix, missing
from analemma.catalog.engine.db import Engine
from analemma.clock import Entropy
from analemma.errors import Conflict, Denied, Internal, NotFound, Unavailable
from analemma.failpoints import declare, hit

AFTER_INTENT = declare("objects.after_intent", "a catalog intends to raise its objects' marker, which is as it was")
AFTER_MARKER = declare("objects.after_marker", "the marker of the objects is raised, and its catalog does not know")
AFTER_GENERATION = declare(
    "objects.after_generation", "marker and catalog agree on a new generation, and nothing is done"
)

MARKER = "owner.json"
FOLDERS = "copies"
"""Below it, each copy of the catalog has a folder."""
_FORMAT = 1
_TRIES = 20

OwnerState = Literal["own", "owner", "unclaimed", "other"]
T = TypeVar("T")


class NotOwner(Denied):
    """The objects are another catalog's, or may be."""


class CatalogIdentity(NamedTuple):
    """What tells a catalog from its copies, as far as anything does."""

    system: str | None
    """PostgreSQL's system identifier, which replicas share; of SQLite, `sqlite`. None: this role may not ask."""
    database: str
    """The OID of the database, and behind a point that of the schema if it is not `public`; of SQLite, the inode of its
    file."""

    def __str__(self) -> str:
        if self.system == "sqlite":
            return f"the SQLite file of inode {self.database}"
        return f"database {self.database} of PostgreSQL system {self.system or '(unknown)'}"

    def may_be(self, other: CatalogIdentity) -> bool:
        """Whether nothing tells the two apart."""
        known = self.system is not None and other.system is not None
        return self.database == other.database and (not known or self.system == other.system)


class ObjectClaim(NamedTuple):
    """How far a catalog has followed the marker of its objects."""

    store: str
    generation: int
    """The one that was last confirmed; 0: there was none."""
    token: str | None
    """What tells it from the same generation of a clone."""
    intent: str | None
    """The token of the next generation, if its marker may have been written."""
    place: str | None
    """Where the marker was."""


class Marker(NamedTuple):
    """Whose the objects are, as the object beside them says."""

    store: str
    system: str | None
    database: str
    generation: int
    token: str

    @property
    def catalog(self) -> CatalogIdentity:
        """Which of the store's catalogs."""
        return CatalogIdentity(self.system, self.database)

    def encode(self) -> bytes:
        """As it is stored."""
        return json.dumps({"format": _FORMAT, **self._asdict()}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> Marker | None:
        """What was stored; None if it is no marker that this release knows."""
        try:
            facts = json.loads(data)
            if facts["format"] != _FORMAT:
                return None
            store, system, database, generation, token = (facts[name] for name in cls._fields)
            return cls(str(store), system and str(system), str(database), int(generation), str(token))
        except (ValueError, KeyError, TypeError):
            return None


class _View(NamedTuple):
    """What the catalog knows and what the marker says, at one moment."""

    claim: ObjectClaim
    found: bytes | None
    """The marker, as it is stored."""
    marker: Marker | None
    """The same, if it is there and can be read."""
    refusal: NotOwner | None
    """Why this catalog is not the owner, if it is not."""

    @property
    def is_ahead(self) -> bool:
        """The marker of an earlier turn was written, and whoever did that died before he could say so."""
        claim, marker = self.claim, self.marker
        return marker is not None and (marker.generation, marker.token) == (claim.generation + 1, claim.intent)


@dataclass(frozen=True, slots=True)
class ObjectOwner:
    """Whose the objects of a store are."""

    state: OwnerState
    """`own`: they lie in the store's own directory. `owner`: the marker names this catalog. `unclaimed`: there is none
    yet, and the first object or pass makes one. `other`: they are another's, and this catalog deletes nothing."""
    generation: int
    detail: str
    """The same for people."""


class ObjectOwnership:
    """Keeps to the rule that objects belong to one catalog, for those at one place outside of the store's own."""

    def __init__(
        self, engine: Engine, objects: ObjectStore, place: str, entropy: Entropy, *, inside: str | None = None
    ) -> None:
        """`inside`: the file of another catalog, in whose own directory the objects lie."""
        self._engine = engine
        self._objects = objects
        self._place = place
        self._entropy = entropy
        self._inside = inside
        self._lock = threading.Lock()
        self._decided = False
        self._folder: str | None = None

    def owner(self) -> ObjectOwner:
        """Whose the objects are now. Changes nothing."""
        claim, found, _, refusal = self._look()
        if refusal is not None:
            return ObjectOwner("other", claim.generation, f"{refusal.message} ({refusal.hint})")
        if found is None:
            return ObjectOwner(
                "unclaimed", claim.generation, "nobody's yet; the first object or pass makes them its own"
            )
        return ObjectOwner("owner", claim.generation, f"this catalog's, generation {claim.generation}")

    def take_turn(self) -> None:
        """Raise the generation: what begins a pass. Denied, and nothing is changed, if the objects are another's."""
        for _ in range(_TRIES):
            view = self._look()
            claim = view.claim
            if view.refusal is not None:
                raise view.refusal
            if view.is_ahead:
                self._confirm(claim)
                continue
            self._write("intend_generation", generation=claim.generation, token=claim.token or "", intent=self._token())
            # As it is then, also if somebody else did that.
            intended = self._claim()
            if intended.generation == claim.generation and intended.intent and self._raise(intended, view.found):
                return
        raise _too_many()

    def check(self) -> None:
        """Denied unless the objects are this catalog's: asked before each deletion, since a pass may take long."""
        view = self._look()
        if view.refusal is not None:
            raise view.refusal
        if view.found is None:
            self.take_turn()

    def check_present(self) -> None:
        """Unavailable if these cannot be the objects that this catalog knows: asked when one is missing, which may be
        damage, or another bucket."""
        if self._claim().generation > 0 and self._read() is None:
            raise Unavailable(
                f"the objects of this store are not at {self._place}: there is no {MARKER}",
                hint="check that the bucket or the directory is the right one, and mounted; if all objects are there, "
                "`analemma objects adopt`",
                objects=self._place,
            )

    def adopt(self) -> ObjectOwner:
        """Make them this catalog's; whoever owned them finds out before his next deletion, and stops."""
        for _ in range(_TRIES):
            claim, found, marker, refusal = self._look()
            if refusal is not None and self._inside is not None:
                raise refusal  # Their store needs no marker, and would not see one.
            if refusal is None:
                try:
                    self.take_turn()
                    break
                except NotOwner:
                    continue  # Another adopted them this moment: of two who do, the later one has them.
            last = claim if marker is None else marker
            adopted = claim._replace(generation=last.generation, token=last.token, intent=self._token())
            if self._write(
                "adopt_generation",
                generation=adopted.generation,
                token=adopted.token,
                intent=adopted.intent,
                was=claim.generation,
                was_token=claim.token or "",
            ) and self._raise(adopted, found):
                break
        else:
            raise _too_many()
        with self._lock:
            self._decided = False
        return self.owner()

    def folder_to_write(self) -> str | None:
        """The folder below which this program puts objects: None, among the others, unless those are another's."""
        if not self._decided:
            with self._lock:
                if not self._decided:
                    self._folder = self._choose_folder()
                    self._decided = True
        return self._folder

    def folders(self) -> list[str]:
        """Below which, beside the usual place, objects of this catalog may lie."""
        return [name for name, _ in self._engine.all("object_folders")]

    def _choose_folder(self) -> str | None:
        try:
            self.check()
            return None
        except NotOwner:
            pass
        identity = str(self._identity())
        for name, catalog in self._engine.all("object_folders"):
            # One that is in a copy's catalog because it was copied from there is that of the copy's original.
            if catalog == identity:
                return str(name)
        name = f"{FOLDERS}/{self._token()}"
        self._write("add_object_folder", name=name, catalog=identity)
        return name

    def _raise(self, intended: ObjectClaim, found: bytes | None) -> bool:
        """Write the marker that is intended in the place of the one that was found; False if another was there."""
        assert intended.intent is not None
        hit(AFTER_INTENT)
        marker = Marker(intended.store, *self._identity(), intended.generation + 1, intended.intent).encode()
        try:
            if found is None:
                self._objects.put(MARKER, marker, if_absent=True)
            else:
                self._objects.replace(MARKER, marker, expected=found)
        except Conflict:
            return False
        hit(AFTER_MARKER)
        self._confirm(intended)
        hit(AFTER_GENERATION)
        return True

    def _confirm(self, claim: ObjectClaim) -> None:
        """Record that the marker says what was intended."""
        self._write("confirm_generation", generation=claim.generation, intent=claim.intent or "", place=self._place)

    def _identity(self) -> CatalogIdentity:
        """Which catalog this is. Asked each time: a URL may lead to another server from one moment to the next."""
        return CatalogIdentity(*self._engine.identity())

    def _claim(self) -> ObjectClaim:
        return self._engine.rows(ObjectClaim, "object_claim")[0]

    def _write(self, name: str, /, **facts: Any) -> int:
        return self._engine.write(lambda tx: tx.execute(name, **facts), durable=True)

    def _look(self) -> _View:
        for _ in range(_TRIES):
            claim, found = self._claim(), self._read()
            view = _View(claim, found, None if found is None else Marker.decode(found), None)
            refusal = self._refusal(view)
            # Another program on this catalog may have raised both between the two looks.
            if refusal is None or self._claim() == claim:
                return view._replace(refusal=refusal)
        raise _too_many()

    def _read(self) -> bytes | None:
        try:
            return self._objects.get(MARKER)
        except NotFound:
            return None

    def _refusal(self, view: _View) -> NotOwner | None:
        claim, found, marker, _ = view
        if self._inside is not None:
            return self._denied(
                "inside",
                f"they lie in the own directory of another store, that of {self._inside}",
                "`analemma objects detach` gives this one objects of its own",
            )
        if found is None:
            if claim.generation == 0 or claim.place != self._place:
                return None
            return self._denied(
                "gone",
                "they have no marker any more: it was deleted, or these are not the objects of this store",
                f"check that {self._place} is the right place; if all objects are there, `analemma objects adopt`",
            )
        if marker is None:
            return self._denied("unreadable", f"their marker, {MARKER}, cannot be read", _WHAT_TO_DO)
        identity = self._identity()
        if marker.store != claim.store or not marker.catalog.may_be(identity):
            whose = "of the same store" if marker.store == claim.store else f"of store {marker.store}"
            return self._denied(
                "identity",
                f"they belong to another catalog {whose}, {marker.catalog}, and this is {identity}",
                _WHAT_TO_DO,
                owner=str(marker.catalog),
                store=marker.store,
            )
        if (marker.generation, marker.token) == (claim.generation, claim.token) or view.is_ahead:
            return None
        return self._denied(
            "generation",
            f"another copy of this catalog collected them last: they are at generation {marker.generation}, and this "
            f"catalog at {claim.generation}",
            _WHAT_TO_DO,
        )

    def _denied(self, reason: str, message: str, hint: str, **facts: str) -> NotOwner:
        return NotOwner(
            f"the objects at {self._place} are not this catalog's to delete: {message}",
            hint=hint,
            reason=reason,
            objects=self._place,
            **facts,
        )

    def _token(self) -> str:
        return self._entropy.random_bytes(16).hex()


class OwnedObjects(StoreWrapper):
    """An object store whose deletions ask first whose the objects are. What a copy of the catalog wrote lies below
    folders of its own and is read as if it lay among the others: names of objects are random, so none is in two
    places."""

    def __init__(self, store: ObjectStore, ownership: ObjectOwnership) -> None:
        super().__init__(store)
        self._ownership = ownership

    def _pass(self, operation: str, call: Callable[..., T], *given: Any, **options: Any) -> T:
        if not given:
            return call()
        key, *rest = given
        if operation in ("put", "put_stream", "replace"):
            folder = self._ownership.folder_to_write()
            return call(key if folder is None else f"{folder}/{check_key(key)}", *rest, **options)
        try:
            return call(key, *rest)
        except NotFound:
            return call(self._find_below(key).key, *rest)

    def open_read(self, key: str) -> Iterator[bytes]:
        pieces = self._store.open_read(key)
        try:
            first = [*islice(pieces, 1)]
        except NotFound:
            first, pieces = [], self._store.open_read(self._find_below(key).key)
        yield from first
        yield from pieces

    def head(self, key: str) -> ObjectInfo | None:
        info = self._store.head(key)
        try:
            return info or replace(self._find_below(key), key=key)
        except NotFound:
            return None

    def delete(self, key: str) -> None:
        self.delete_many([key])

    def delete_many(self, keys: Iterable[str]) -> None:
        chosen = [check_key(key) for key in keys]
        if chosen:
            self._ownership.check()
            folders = self._ownership.folders()
            self._store.delete_many([*chosen, *(f"{folder}/{key}" for folder in folders for key in chosen)])

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        folder = check_prefix(prefix)
        listings = [self._below(each, folder) for each in ("", *self._ownership.folders())]
        return heapq.merge(*listings, key=lambda info: info.key.encode()) if len(listings) > 1 else listings[0]

    def tag(self, key: str, tags: Mapping[str, str]) -> None:
        # By its tags the bucket's own rules may delete it.
        self._ownership.check()
        super().tag(key, tags)

    def _find_below(self, key: str) -> ObjectInfo:
        """The same object below a folder of this catalog's, if it is there; NotFound by its own name if it is not."""
        for folder in self._ownership.folders():
            if (info := self._store.head(f"{folder}/{key}")) is not None:
                return info
        self._ownership.check_present()
        raise missing(key)

    def _below(self, folder: str, prefix: str) -> Iterator[ObjectInfo]:
        """What is listed below a folder, or among the others: without the marker and what copies have put below their
        folders, which is nobody else's."""
        for info in self._store.list("/".join(filter(None, (folder, prefix)))):
            if folder:
                yield replace(info, key=info.key.removeprefix(f"{folder}/"))
            elif prefix or (info.key != MARKER and not info.key.startswith(f"{FOLDERS}/")):
                yield info


_WHAT_TO_DO = (
    "a copy of a store, such as staging, gets objects of its own by `analemma objects detach`; `analemma objects "
    "adopt` takes them over for good, and their owner then deletes nothing any more"
)


def _too_many() -> Internal:
    return Internal("the marker of the objects changes faster than it can be read", hint="try again")
