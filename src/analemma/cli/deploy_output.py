"""What commands print about deploys."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from analemma.cli.exit_codes import CODES, OK
from analemma.cli.output import one_line, print_fields, print_json, print_line
from analemma.clock import moment

if TYPE_CHECKING:
    from analemma.cli.options import StoreOptions
    from analemma.pipeline.deploy_records import Deploy, ExplainedSink, Explanation


def print_deploy(store: StoreOptions, deploy: Deploy) -> int:
    """How far a deploy is; the exit code that tells so: that of its error, if it failed."""
    if store.json:
        print_json({"deploy": deploy.as_dict()})
    else:
        print_fields(_fields(deploy))
        if deploy.error is not None and deploy.error.hint:
            print(f"hint: {one_line(deploy.error.hint)}", file=sys.stderr)
    return OK if deploy.error is None else CODES.get(deploy.error.kind, 1)


def deploy_line(deploy: Deploy) -> str:
    """A deploy in one line."""
    error = "" if deploy.error is None else f"  {one_line(deploy.error.message)}"
    newer = "" if deploy.superseded_by is None else f"  superseded by {deploy.superseded_by}"
    when, key = _when(deploy.created_at_us), f"{deploy.entity_type} {deploy.entity_id}"
    return f"{deploy.id}  {deploy.state:<7}  {when}  {key}  {deploy.version}{newer}{error}"


def print_explanation(store: StoreOptions, told: Explanation) -> None:
    """Everything about a deploy."""
    if store.json:
        print_json({"explanation": told.as_dict()})
        return
    fields = _fields(told.deploy)
    if told.ruleset is not None:
        fields["ruleset"] = told.ruleset
        fields["compiled"] = f"{told.mode}, revision {told.revision}" + (", up to date" if told.up_to_date else "")
    if told.attempts:
        fields["tries"] = f"{told.attempts} failed"
    fields["waits for"] = told.waits_for or "nothing"
    print_fields({name: one_line(str(value)) for name, value in fields.items()})
    for each in told.slices:
        more = f" and {each.more} more" if each.more else ""
        why = f": {one_line(', '.join(each.why))}{more}" if each.why else ""
        print_line(f"slice {each.type}: {each.outcome}{why}")
    for sink in told.sinks:
        print_line(f"sink {sink.rule}: {_sink(sink)}")
    for step in told.steps:
        reason = f": {one_line(step.reason)}" if step.reason else ""
        again = f", attempt {step.attempt}" if step.attempt > 1 else ""
        print_line(f"{_when(step.at_us)}  {step.state.value}{again}{reason}")


@contextmanager
def waiting_for(store: StoreOptions, what: str) -> Iterator[None]:
    """A sign of life, for people who watch."""
    if store.json or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"waiting for {what}"):
        yield


def _fields(deploy: Deploy) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "deploy": deploy.id,
        "state": deploy.state.value,
        "entity": f"{deploy.entity_type} {deploy.entity_id}",
        "version": deploy.version if deploy.created else f"{deploy.version} (it had this content already)",
        "cutover": deploy.cutover,
    }
    if deploy.superseded_by is not None:
        fields["served"] = f"no, superseded by {deploy.superseded_by}"
    else:
        fields["served"] = "yes" if deploy.served else "not yet"
    if deploy.attempt > 1:
        fields["attempt"] = deploy.attempt
    if deploy.error is not None:
        fields["error"] = one_line(deploy.error.message)
    return fields


def _sink(sink: ExplainedSink) -> str:
    if not sink.asked and sink.state is None:
        return f"not asked, {sink.why}"
    slices = f" ({', '.join(sink.slices)})" if sink.slices else ""
    reason = f", {one_line(sink.reason)}" if sink.reason else ""
    waiting = "" if sink.waiting is None else one_line(sink.waiting.describe(int(time.time() * 1_000_000)))
    return f"{sink.state or 'asked'}, {sink.why}{slices}{reason}{waiting}"


def _when(moment_us: int) -> str:
    return moment(moment_us).isoformat(sep=" ", timespec="seconds")
