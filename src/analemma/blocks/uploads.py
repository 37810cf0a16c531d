"""The upload step of a two-phase commit: intent, bytes, check. The commit that follows makes the object count."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from analemma import failpoints
from analemma.blocks.packs import Pack, pack_key
from analemma.blocks.port import ObjectStore, quote_metadata
from analemma.errors import Corrupt, OutcomeUnknown, Unavailable

BEFORE_INTENT = failpoints.declare("upload.before_intent", "a pack is built and nothing is recorded")
AFTER_INTENT = failpoints.declare("upload.after_intent", "the intent is durable and no byte is written")
AFTER_OBJECT = failpoints.declare("upload.after_object", "the object is durable and no commit names it")

_MAX_QUOTED_BYTES = 300


def upload_pack(
    store: ObjectStore,
    upload_id: bytes,
    pack: Pack,
    *,
    open_intent: Callable[[], None],
    metadata: Mapping[str, str],
) -> str:
    """Record the intent, store the pack durably, and return its key.

    If it raises or the process dies, the state is the old one and the intent, if recorded, names what the collector
    must look for.
    """
    key = pack_key(upload_id)
    failpoints.hit(BEFORE_INTENT)
    # Intent first: bytes without an intent could only be found again by listing the store.
    open_intent()
    failpoints.hit(AFTER_INTENT)
    try:
        store.put(key, pack.data, metadata=metadata, if_absent=True)
    except OutcomeUnknown as exc:
        # Whether the object is there does not matter: without its commit it counts for nothing, and the intent names
        # it.
        raise Unavailable(exc.message, hint="the save changed nothing; try again", **exc.facts) from exc
    info = store.head(key)
    if info is None or info.size != len(pack.data):
        found = "nothing" if info is None else f"{info.size} bytes"
        raise Corrupt(
            f"object {key} was stored but reads back as {found} instead of {len(pack.data)} bytes",
            hint="check the object store; the save changed nothing",
            key=key,
        )
    failpoints.hit(AFTER_OBJECT)
    return key


def object_metadata(
    pack: Pack, *, workflow_id: str | None, execution_id: str | None, created_at_us: int, usage: str = "temp"
) -> dict[str, str]:
    """What stands beside a pack for people and tools that look at the bucket; nothing here is ever trusted."""
    metadata = {
        "usage": usage,
        "checksum": f"sha256:{pack.sha256.hex()}",
        "created_at": datetime.fromtimestamp(created_at_us / 1_000_000, UTC).isoformat(timespec="microseconds"),
    }
    if workflow_id is not None:
        metadata["workflow_id"] = _bounded(workflow_id)
    if execution_id is not None:
        metadata["execution_id"] = _bounded(execution_id)
    return metadata


def _bounded(text: str) -> str:
    # Stores allow about 2 KB of ASCII in all. A name too long for that is still recognisable by its hash.
    if text.isprintable() and len(quote_metadata(text)) <= _MAX_QUOTED_BYTES:
        return text
    return "sha256:" + hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
