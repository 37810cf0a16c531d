"""Objects belong to one catalog. A marker among them names it, and a generation that each pass of a collector raises:

    1. the catalog intends the next generation, with a random token      AFTER_INTENT
    2. the marker is replaced, if it still says what the catalog knows   AFTER_MARKER
    3. the catalog confirms it                                           AFTER_GENERATION

A dump that was restored, or a database made of a template, is another catalog by its identity. A clone of the disk is
not, but of the two only one raises the marker: what the other knows is then neither the old generation nor its own
intent. Before a pass expires, dooms, claims or deletes anything, the two must agree; whoever does not own the objects
reads them, and writes below a folder of its own."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Literal

from analemma.blocks.port import ObjectStore
from analemma.catalog.collecting.owners import CatalogIdentity, ObjectClaim, ObjectOwnerRows
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


class NotOwner(Denied):
    """The objects are another catalog's, or may be."""


@dataclass(frozen=True, slots=True)
class Marker:
    """Whose the objects are, as the object beside them says."""

    store: str
    catalog: CatalogIdentity
    generation: int
    token: str

    def encode(self) -> bytes:
        """As it is stored."""
        facts = {
            "format": _FORMAT,
            "store": self.store,
            "system": self.catalog.system,
            "database": self.catalog.database,
            "generation": self.generation,
            "token": self.token,
        }
        return json.dumps(facts, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> Marker | None:
        """What was stored; None if it is no marker that this release knows."""
        try:
            facts = json.loads(data)
            if facts["format"] != _FORMAT:
                return None
            system = facts["system"]
            identity = CatalogIdentity(None if system is None else str(system), str(facts["database"]))
            return cls(str(facts["store"]), identity, int(facts["generation"]), str(facts["token"]))
        except (ValueError, KeyError, TypeError):
            return None


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
        self, rows: ObjectOwnerRows, objects: ObjectStore, place: str, entropy: Entropy, *, inside: str | None = None
    ) -> None:
        """`inside`: the file of another catalog, in whose own directory the objects lie."""
        self._rows = rows
        self._objects = objects
        self._place = place
        self._entropy = entropy
        self._inside = inside
        self._lock = threading.Lock()
        self._decided = False
        self._folder: str | None = None

    def owner(self) -> ObjectOwner:
        """Whose the objects are now. Changes nothing."""
        claim, found, refusal = self._look()
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
            claim, found, refusal = self._look()
            if refusal is not None:
                raise refusal
            if self._is_ahead(claim, found):
                # The marker of an earlier turn was written, and whoever did that died before he could say so.
                self._rows.confirm(claim, self._place)
                continue
            intended = self._rows.intend(claim, self._token())
            if intended.generation == claim.generation and intended.intent and self._raise(intended, found):
                return
        raise _too_many()

    def check(self) -> None:
        """Denied unless the objects are this catalog's: asked before each deletion, since a pass may take long."""
        _, found, refusal = self._look()
        if refusal is not None:
            raise refusal
        if found is None:
            self.take_turn()

    def check_present(self) -> None:
        """Unavailable if these cannot be the objects that this catalog knows: asked when one is missing, which may be
        damage, or another bucket."""
        if self._rows.claim().generation > 0 and self._read() is None:
            raise Unavailable(
                f"the objects of this store are not at {self._place}: there is no {MARKER}",
                hint="check that the bucket or the directory is the right one, and mounted; if all objects are there, "
                "`analemma objects adopt`",
                objects=self._place,
            )

    def adopt(self) -> ObjectOwner:
        """Make them this catalog's; whoever owned them finds out before his next deletion, and stops."""
        for _ in range(_TRIES):
            claim, found, refusal = self._look()
            if refusal is not None and self._inside is not None:
                raise refusal  # Their store needs no marker, and would not see one.
            if refusal is None:
                try:
                    self.take_turn()
                    break
                except NotOwner:
                    continue  # Another adopted them this moment: of two who do, the later one has them.
            marker = None if found is None else Marker.decode(found)
            generation, token = claim.generation, claim.token
            if marker is not None:
                generation, token = marker.generation, marker.token
            intent = self._token()
            if not self._rows.adopt(claim, generation=generation, token=token, intent=intent):
                continue
            if self._raise(ObjectClaim(claim.store, generation, token, intent, claim.place), found):
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
        return list(self._rows.folders())

    def _choose_folder(self) -> str | None:
        try:
            self.check()
            return None
        except NotOwner:
            pass
        identity = str(self._rows.identity())
        for name, catalog in self._rows.folders().items():
            # One that is in a copy's catalog because it was copied from there is that of the copy's original.
            if catalog == identity:
                return name
        name = f"{FOLDERS}/{self._token()}"
        self._rows.add_folder(name, identity)
        return name

    def _raise(self, intended: ObjectClaim, found: bytes | None) -> bool:
        """Write the marker that is intended in the place of the one that was found; False if another was there."""
        assert intended.intent is not None
        hit(AFTER_INTENT)
        marker = Marker(intended.store, self._rows.identity(), intended.generation + 1, intended.intent).encode()
        try:
            if found is None:
                self._objects.put(MARKER, marker, if_absent=True)
            else:
                self._objects.replace(MARKER, marker, expected=found)
        except Conflict:
            return False
        hit(AFTER_MARKER)
        self._rows.confirm(intended, self._place)
        hit(AFTER_GENERATION)
        return True

    def _look(self) -> tuple[ObjectClaim, bytes | None, NotOwner | None]:
        """What the catalog knows, what the marker holds, and why this is not its owner, if it is not."""
        for _ in range(_TRIES):
            claim = self._rows.claim()
            found = self._read()
            refusal = self._refusal(claim, found)
            # Another program on this catalog may have raised both between the two looks.
            if refusal is None or self._rows.claim() == claim:
                return claim, found, refusal
        raise _too_many()

    def _read(self) -> bytes | None:
        try:
            return self._objects.get(MARKER)
        except NotFound:
            return None

    def _is_ahead(self, claim: ObjectClaim, found: bytes | None) -> bool:
        marker = None if found is None else Marker.decode(found)
        return marker is not None and (marker.generation, marker.token) == (claim.generation + 1, claim.intent)

    def _refusal(self, claim: ObjectClaim, found: bytes | None) -> NotOwner | None:
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
        marker = Marker.decode(found)
        if marker is None:
            return self._denied("unreadable", f"their marker, {MARKER}, cannot be read", _WHAT_TO_DO)
        identity = self._rows.identity()
        if marker.store != claim.store or not marker.catalog.may_be(identity):
            whose = "of the same store" if marker.store == claim.store else f"of store {marker.store}"
            return self._denied(
                "identity",
                f"they belong to another catalog {whose}, {marker.catalog}, and this is {identity}",
                _WHAT_TO_DO,
                owner=str(marker.catalog),
                store=marker.store,
            )
        if (marker.generation, marker.token) == (claim.generation, claim.token) or self._is_ahead(claim, found):
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


_WHAT_TO_DO = (
    "a copy of a store, such as staging, gets objects of its own by `analemma objects detach`; `analemma objects "
    "adopt` takes them over for good, and their owner then deletes nothing any more"
)


def _too_many() -> Internal:
    return Internal("the marker of the objects changes faster than it can be read", hint="try again")
