"""The forms that the fields of a state take in a payload and in the store, each made once; and what they tell: which
fields are not what they were when the state was hydrated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from analemma.bag.fields import FieldPolicy
from analemma.bag.hydration import FieldChanges, HydratedState, Origin, Part, Unloaded
from analemma.bag.payload_json import Encoded, Encoder
from analemma.canon.pointer import format_pointer
from analemma.canon.trees import Edited, Trees
from analemma.canon.values import encode
from analemma.errors import Invalid


class FieldForms:
    """The forms of one state's fields. Ask for those of one value per name only."""

    def __init__(self, trees: Trees, encoder: Encoder, policy: FieldPolicy, event_bytes: int) -> None:
        self._trees = trees
        self._encoder = encoder
        self._policy = policy
        self._event_bytes = event_bytes
        self._encoded: dict[str, Encoded | None] = {}
        self._built: dict[str, Edited] = {}

    def json(self, name: str, value: Any) -> Encoded | None:
        """As it may stand in a payload; None if it is too large for that."""
        if name not in self._encoded:
            control = self._policy.is_control(name)
            limit = self._policy.limit_bytes if control else self._policy.field_bytes
            self._encoded[name] = self._encoder.encode(name, value, limit)
        return self._encoded[name]

    def tree(self, name: str, value: Any) -> Edited:
        """As it stands in the store behind a pointer of its own."""
        if name not in self._built:
            try:
                self._built[name] = self._trees.build(value)
            except Invalid as exc:
                # The tree was built of the value alone; whoever reads the message knows the state.
                pointer = format_pointer((name,)) + str(exc.facts.get("pointer", ""))
                raise Invalid(f"field {name!r}: {exc.message}", hint=exc.hint, pointer=pointer) from None
        return self._built[name]

    def changes(self, values: Mapping[str, Any], state: HydratedState, origin: Origin) -> FieldChanges:
        """Which of these values are not what was hydrated, and which fields of it the state has no more."""
        known = origin.fingerprints
        changed = {
            name: value
            for name, value in values.items()
            if known.get(name) is None or self._fingerprint(origin.parts.get(name), name, value) != known[name]
        }
        return FieldChanges(changed, tuple(name for name in known if not dict.__contains__(state, name)))

    def _fingerprint(self, part: Part | None, name: str, value: Any) -> bytes | None:
        """What tells whether a field's value is still the one that was read: in the form in which it was read."""
        if part is None:
            # An event may carry a field that is larger than any that this policy would leave in a payload.
            made = self.json(name, value) or self._encoder.encode(name, value, self._event_bytes)
            return None if made is None else json_fingerprint(made.json)
        if not part.grouped:
            return bytes(self.tree(name, value).root.id)
        return bytes(encode(self._trees.pack(value)[0]))


def loaded_values(state: HydratedState) -> dict[str, Any]:
    """Those fields of a state that are here; what was never loaded is what it was."""
    return {name: value for name, value in dict.items(state) if not isinstance(value, Unloaded)}


def json_fingerprint(value: Any) -> bytes:
    """Tells whether a field that stood in a payload is still the same."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
