"""Sinks: how settings are filled in from the environment, and what documents are called in places that allow little."""

from analemma.sinks.expanding import expand as expand
from analemma.sinks.naming import safe_name as safe_name
