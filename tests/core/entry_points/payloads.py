"""Names what payloads ask of the machine: how much memory this process may use."""

from analemma.machine import memory_limit_mb as memory_limit_mb
