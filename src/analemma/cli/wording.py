"""What errors of the library say, in the words of the command line."""

from __future__ import annotations

from typing import Final

WORDS: Final = {
    "a schedule has either cron or every_s": "a schedule has either --cron or --every",
    'cron="0 9 * * MON-FRI", or every_s=3600': "--cron '0 9 * * MON-FRI', or --every 3600",
    "a zone is of cron, and an interval has none": "--zone is of --cron, and --every has none",
    "leave out the zone": "leave out --zone",
    "remove it, or replace it": "remove it, or say --replace",
    "schedules.list() has those that there are": "analemma schedule list has those that there are",
    "a rate needs both rate and per_s": "a rate needs both --rate and --per",
    "rate=10, per_s=60: ten runs a minute": "--rate 10 --per 60: ten runs a minute",
    "queues.list() has those that have": "analemma queue list has those that have",
    "with unknown='happened' or unknown='did not'; then this run": "with --unknown happened or --unknown did-not; then "
    "this run",
    "give owner and workflow, or an id": "give --owner and --workflow, or an id",
    "give more of it, or owner and workflow": "give more of it, or --owner and --workflow",
    "runs() lists them": "analemma runs lists them",
    "archives.list() lists them": "analemma workspace list lists them",
    "or pass mock={'NODE': answer}": 'or say --mock FILE, with {"NODE": answer} in it',
    "run it once without mock, or pass answers by node": "run it once without --mock, or say --mock FILE, with answers "
    "by node in it",
    "find out, and resume the run with unknown='happened' or unknown='did not'; or let": "find out, and: analemma "
    "resume EXECUTION --unknown happened|did-not --module MODULE; or let",
}
"""By a phrase of the library."""


def in_cli_words(text: str) -> str:
    """A message or a hint as people at a terminal understand it.

    >>> in_cli_words("there is no run 5f0c (runs() lists them)")
    'there is no run 5f0c (analemma runs lists them)'
    """
    for phrase, words in WORDS.items():
        text = text.replace(phrase, words)
    return text
