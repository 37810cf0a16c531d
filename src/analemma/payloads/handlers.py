"""Functions that take a state and give one, as handlers of events with pointers: hydrate in, run, dehydrate out."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from analemma.errors import Invalid
from analemma.payloads.hydrate import HydratedState
from analemma.payloads.payloads import Payloads, field_names


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

            @functools.wraps(function)
            async def handle_async(event: Any, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
                state, leave = await asyncio.to_thread(self._arrive, payloads, event)
                result = await function(state, *args, **kwargs)
                return await asyncio.to_thread(leave, result)

            return handle_async

        @functools.wraps(function)
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
