"""The data sets that are known by name, and where each one is: a repository of the Hugging Face hub at a fixed revision.

Training pools and evaluation sets are kept apart by name: an evaluation set has the split ``test`` alone, a training pool
``train`` alone, so that neither is taken for the other by an oversight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

__all__ = ["HUB_DATASETS", "HubDataset", "Role", "hub_datasets"]

Role: TypeAlias = Literal["evaluation", "training"]


@dataclass(frozen=True)
class HubDataset:
    """A data set on the hub.

    Attributes:
        name: What users call it.
        tasks: The tasks that it has problems for.
        role: What it is for.
        repository: Owner and name on the hub.
        revision: The commit, so that the content never changes.
        files: The files, in order.
        size: How many problems it has, ``None`` where only some of its rows are a task's.
        gated: Whether its terms have to be accepted on the hub first.
        note: Its licence, and what else to know.
    """

    name: str
    tasks: tuple[str, ...]
    role: Role
    repository: str
    revision: str
    files: tuple[str, ...]
    size: int | None
    gated: bool = False
    note: str = ""

    @property
    def split(self) -> str:
        """The only split."""
        return "test" if self.role == "evaluation" else "train"


_GPQA: Final = ("Idavidrein/gpqa", "633f5ee89ab8ad4522a9f850766b73f62147ffdd")
_LIVECODEBENCH: Final = ("livecodebench/code_generation_lite", "0fe84c3912ea0c4d4a78037083943e8f0c4dd505")
_LIVECODEBENCH_SIZES: Final = (400, 511, 612, 713, 880, 1055)
_MAA: Final = "the texts are the MAA's, whatever the repository's licence"


def _aime(name: str, repository: str, revision: str, file: str) -> HubDataset:
    return HubDataset(name, ("aime",), "evaluation", repository, revision, (file,), 30, note=_MAA)


def _gpqa(name: str, size: int) -> HubDataset:
    note = "CC BY 4.0; its authors ask not to publish the questions in plain text"
    return HubDataset(name, ("gpqa",), "evaluation", *_GPQA, (f"{name}.csv",), size, gated=True, note=note)


def _livecodebench(release: int) -> HubDataset:
    files = ("test.jsonl", *(f"test{number}.jsonl" for number in range(2, release + 1)))
    size = _LIVECODEBENCH_SIZES[release - 1]
    note = "CC; all problems up to this release"
    return HubDataset(
        f"livecodebench_v{release}", ("livecodebench",), "evaluation", *_LIVECODEBENCH, files, size, note=note
    )


HUB_DATASETS: Final[dict[str, HubDataset]] = {
    dataset.name: dataset
    for dataset in (
        _aime(
            "aime2024", "Maxwell-Jia/AIME_2024", "8d88b2876a82a080e2f172cc9b25d0d9d2cb4792", "aime_2024_problems.parquet"
        ),
        _aime("aime2025", "math-ai/aime25", "563bb8404243c5f09de6ec262f2db674fe5bce9b", "test.jsonl"),
        _aime("aime2026", "math-ai/aime26", "79037aebdb6580008fb960d17cb21fd3099083e3", "aime2026.jsonl"),
        _gpqa("gpqa_diamond", 198),
        _gpqa("gpqa_main", 448),
        *(_livecodebench(release) for release in range(1, 7)),
        HubDataset(
            "dapo_math_17k",
            ("aime",),
            "training",
            "BytedTsinghua-SIA/DAPO-Math-17k",
            "65877096c24ffa7abc4e4fa5edb95cf3413a5674",
            ("data/dapo-math-17k.parquet",),
            None,
            note="Apache-2.0; the file repeats its problems about a hundred times, here each is there once",
        ),
        HubDataset(
            "open_agentrl_30k",
            ("aime", "gpqa", "livecodebench"),
            "training",
            "Gen-Verse/Open-AgentRL-30K",
            "660eca7324319cd69a57738228a5e8e336f3bb40",
            ("Open-AgentRL-30K.parquet",),
            None,
            note="mathematics, science and programs in one file; a task takes the rows that it can grade",
        ),
    )
}
"""By name."""


def hub_datasets(task: str) -> list[str]:
    """Returns the names of a task's data sets on the hub."""
    return [dataset.name for dataset in HUB_DATASETS.values() if task in dataset.tasks]
