"""Names the pure parts of collecting: which tables are roots, how blocks are sorted, rules for buckets, the loop of the
background worker."""

from __future__ import annotations

from analemma.cli.jobs import Job as Job
from analemma.cli.jobs import Worker as Worker
from analemma.gc.lifecycle import Bucket as Bucket
from analemma.gc.lifecycle import LifecycleFormat as LifecycleFormat
from analemma.gc.lifecycle import lifecycle as lifecycle
from analemma.gc.lifecycle import parse_bucket as parse_bucket
from analemma.gc.mark import ROOTS as ROOTS
from analemma.gc.mark import Marks as Marks
from analemma.gc.mark import Survey as Survey
