"""The name by which programs that test with failing stores know what tries again."""

from analemma.blocks.hardened import Hardened as RetryStore

__all__ = ["RetryStore"]
