"""Documents as they are stored: in one form, whatever form they came in, with a hash that says so."""

from __future__ import annotations

import copy
import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from analemma.canon.canonical_json import canonical_json, parse_json
from analemma.canon.nodes import BlockId
from analemma.canon.pointer import Path, format_pointer
from analemma.canon.trees import Trees
from analemma.catalog.entities.slices import StoredDocument
from analemma.errors import Corrupt, Invalid
from analemma.slicing.changes import Document
from analemma.slicing.entity_key import EntityKey

KNOWN_BYTES: Final = 8 << 20
"""Of canonical JSON that is kept, for all tenants together; in memory it takes many times as much."""

HASH_PREFIX: Final = "sha256:"
_SEPARATOR: Final = b"|"
_LONG_INTEGER: Final = re.compile(rb"[0-9]{19}")
_LEAST, _GREATEST = -(1 << 63), (1 << 64) - 1


def settle_payload(payload: Any) -> tuple[Any, bytes]:
    """The document in the one form in which it is stored, and its canonical JSON; Invalid if it is not JSON.

    The order of keys does not matter, nor whether a number was written `1`, `1.0` or `1e0`.
    """
    text = canonical_json(payload)
    document = parse_json(text)
    if _LONG_INTEGER.search(text):
        document = _fitting(document, ())
    return document, text


def raw_hash(text: bytes, schema_id: str | None, schema_version: str | None) -> bytes:
    """What tells one version from another: SHA-256 of `canonical|schemaId|schemaVersion`."""
    return hashlib.sha256(_SEPARATOR.join((text, (schema_id or "").encode(), (schema_version or "").encode()))).digest()


DELETED_HASH: Final = raw_hash(b"null", None, None)
"""The hash of a version that says that the entity was deleted; no document has it, for documents are objects."""


def format_hash(digest: bytes) -> str:
    """As users see it."""
    return HASH_PREFIX + digest.hex()


def parse_hash(text: str) -> bytes:
    """As the catalog keeps it."""
    return bytes.fromhex(text.removeprefix(HASH_PREFIX))


class _Room:
    """What is kept, of whichever tenant."""

    def __init__(self, limit_bytes: int) -> None:
        self.left_bytes = limit_bytes
        self.lock = threading.Lock()
        self.documents: OrderedDict[tuple[int, BlockId, bytes], tuple[Document, int]] = OrderedDict()


class KnownDocuments:
    """Documents that were read and checked, or just stored, and may soon be needed again. Nobody may change one."""

    def __init__(self, limit_bytes: int = KNOWN_BYTES) -> None:
        self._room = _Room(limit_bytes)
        self._tenant = 0

    def of(self, tenant: int) -> KnownDocuments:
        """Those of one tenant, who does not see others', in the same room: a process may work for very many."""
        made = copy.copy(self)
        made._tenant = tenant
        return made

    def put(self, root: BlockId, digest: bytes, document: Document, size: int) -> None:
        """Keep a document that its hash was checked against, in place of those that were not asked for the longest;
        `size` is that of its canonical JSON."""
        room, key = self._room, (self._tenant, root, digest)
        with room.lock:
            if key in room.documents:
                return
            room.documents[key] = document, size
            room.left_bytes -= size
            while room.left_bytes < 0:
                room.left_bytes += room.documents.popitem(last=False)[1][1]

    def get(self, root: BlockId, digest: bytes) -> Document | None:
        """The document, if it is known."""
        room, key = self._room, (self._tenant, root, digest)
        with room.lock:
            found = room.documents.get(key)
            if found is None:
                return None
            room.documents.move_to_end(key)
            return found[0]


class DocumentReader:
    """Reads documents, and checks what it reads."""

    def __init__(self, trees: Trees, known: KnownDocuments) -> None:
        self._trees = trees
        self._known = known

    def raw(self, stored: StoredDocument | None) -> Document | None:
        """A raw document; None for what is none, or was deleted."""
        if stored is None or stored.root is None:
            return None
        found = self._known.get(stored.root, stored.hash)
        if found is None:
            found = self._trees.read(stored.root)
            text = canonical_json(found)
            if type(found) is not dict or raw_hash(text, stored.schema_id, stored.schema_version) != stored.hash:
                raise Corrupt(
                    f"a raw document is not what its hash {format_hash(stored.hash)} says",
                    hint="run verify, and restore it from a second copy",
                    hash=format_hash(stored.hash),
                )
            self._known.put(stored.root, stored.hash, found, len(text))
        return found

    def read_ahead(self, stored: Iterable[StoredDocument]) -> None:
        """Fetch the roots of these raw documents in one go, for those who read them next."""
        roots = {each.root for each in stored if each.root and self._known.get(each.root, each.hash) is None}
        if roots:
            self._trees.fetch(sorted(roots))

    def slice(self, root: BlockId, digest: bytes, what: str) -> Document:
        """A slice, not to be changed."""
        found = self._known.get(root, digest)
        if found is None:
            found, size = _checked_slice(self._read(root, what), digest, what)
            self._known.put(root, digest, found, size)
        return found

    def _read(self, root: BlockId, what: str) -> Any:
        """What lies there; if it is damaged, whose it is stands in the error: the slice can be made again."""
        try:
            return self._trees.read(root)
        except Corrupt as exc:
            hint = "compile that entity again in full: `analemma compile TYPE ID --mode full`"
            raise Corrupt(f"{what} is damaged: {exc.message}", hint=hint, slice=what, **exc.facts) from exc

    def slices(self, wanted: Sequence[tuple[BlockId, bytes, str]]) -> list[Document]:
        """Many slices, each by root, hash and what it is called, not to be changed; they share their fetches."""
        found = [self._known.get(root, digest) for root, digest, _ in wanted]
        missing = [place for place, document in enumerate(found) if document is None]
        try:
            values = self._trees.read_many([wanted[place][0] for place in missing]) if missing else []
        except Corrupt:
            values = [self._read(wanted[place][0], wanted[place][2]) for place in missing]
        for place, value in zip(missing, values, strict=True):
            root, digest, what = wanted[place]
            document, size = _checked_slice(value, digest, what)
            self._known.put(root, digest, document, size)
            found[place] = document
        return [document for document in found if document is not None]


def check_slice(data: Any, digest: bytes | None, what: str) -> Document:
    """The slice that was read, if it is the one that its row says; otherwise Corrupt."""
    return _checked_slice(data, digest, what)[0]


def damaged_slice(key: EntityKey, error: Corrupt) -> Corrupt:
    """What to say of an entity whose compiled slices cannot be read."""
    return Corrupt(
        f"what {key.type} {key.id} was compiled to is damaged: {error.message}",
        hint=f"make it again from its raw document: `analemma compile {key.type} {key.id} --mode full`",
        entity_key=str(key),
        **error.facts,
    )


def _checked_slice(data: Any, digest: bytes | None, what: str) -> tuple[Document, int]:
    text = canonical_json(data)
    if type(data) is not dict or hashlib.sha256(text).digest() != digest:
        raise Corrupt(f"{what} is not what its hash says", hint="run verify, and compile it again", slice=what)
    return data, len(text)


def _fitting(value: Any, path: Path) -> Any:
    """Integers beyond 64 bits as floats where that changes nothing: `1e20` is one, and canonical JSON spells it out."""
    if type(value) is dict:
        return {name: _fitting(member, (*path, name)) for name, member in value.items()}
    if type(value) is list:
        return [_fitting(member, (*path, str(position))) for position, member in enumerate(value)]
    if type(value) is not int or _LEAST <= value <= _GREATEST:
        return value
    try:
        exact = float(value)
    except OverflowError:
        exact = 0.0
    if int(exact) == value and canonical_json(exact) == canonical_json(value):
        return exact
    raise Invalid(
        f"{format_pointer(path)} is an integer beyond 64 bits",
        hint="write it as text",
        pointer=format_pointer(path),
    )
