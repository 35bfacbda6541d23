"""Environment wrappers: purification, and adapters for other reinforcement-learning libraries."""

from cleaner_env.wrappers.saar import SAARWrapper

__all__ = ["SAARWrapper"]
