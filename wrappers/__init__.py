"""Environment wrappers: purification, recording, and adapters for other reinforcement-learning libraries."""

from cleaner_env.wrappers.recording import RecordEpisodes
from cleaner_env.wrappers.saar import SAARWrapper

__all__ = ["RecordEpisodes", "SAARWrapper"]
