"""What runs calls: the port, its values, and how one is found by its name."""

from analemma.executors.clusters import RayCalls as RayCalls
from analemma.executors.port import Call as Call
from analemma.executors.port import CallExecutor as CallExecutor
from analemma.executors.port import Next as Next
from analemma.executors.port import resolve_executor as resolve_executor
