"""Fetches files from the Hugging Face hub at a fixed revision, into the hub client's own cache.

A file that is in the cache needs no network. Nothing of a repository is run, and there is no substitute for what cannot be
had: the error says what to do.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies

from cleaner_env.errors import DataError
from cleaner_env.tasks.base import Dataset
from cleaner_env.tasks.catalog import HubDataset
from cleaner_env.tasks.files import Row, read_rows
from cleaner_env.tasks.loading import MakeProblem, load_rows, refuse_split

__all__ = ["fetch", "load_hub_dataset"]

_TRUE: Final = frozenset({"1", "ON", "YES", "TRUE"})
_CONNECT_S: Final = 10.0
_PORTS: Final = {"http": 80, "https": 443}


def load_hub_dataset(
    dataset: HubDataset,
    make_problem: MakeProblem,
    split: str | None = None,
    lazy: bool = False,
    files: int | slice = slice(None),
) -> Dataset:
    """Loads a data set of the hub.

    Args:
        dataset: Which one.
        make_problem: As for `load_rows`.
        split: ``None``, or the only split there is.
        lazy: As for `load_rows`.
        files: Which of its files.

    Raises:
        DataError: It cannot be fetched, or a row is malformed.
    """
    refuse_split(dataset.name, split, dataset.split)
    names = dataset.files[files] if isinstance(files, slice) else (dataset.files[files],)
    paths = [fetch(dataset, name) for name in names]
    return load_rows(dataset.name, _rows(paths), make_problem, lazy)


def _rows(paths: list[Path]) -> Iterator[Row]:
    for path in paths:
        yield from read_rows(str(path))


def fetch(dataset: HubDataset, file: str) -> Path:
    """Returns the path of a file in the cache, to where it is downloaded if need be.

    ``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_HUB_CACHE``, ``HF_HOME`` and ``HF_HUB_OFFLINE`` mean what they mean to the client.

    Raises:
        DataError: It is not in the cache and cannot be downloaded; the message says why and what to do.
    """
    if find_spec("huggingface_hub") is None:
        raise DataError(
            f"dataset {dataset.name!r} is on the hub: pip install 'cleaner-env[data]', or give the path of a file"
        )
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    endpoint = os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
    page = f"{endpoint}/datasets/{dataset.repository}"
    download = partial(
        hf_hub_download,
        dataset.repository,
        file,
        repo_type="dataset",
        revision=dataset.revision,
        endpoint=endpoint,
        cache_dir=os.environ.get("HF_HUB_CACHE") or None,
    )
    with contextlib.suppress(LocalEntryNotFoundError):
        return Path(download(local_files_only=True))
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE
    obstacle = "HF_HUB_OFFLINE is set" if offline else _why_unreachable(endpoint)
    if obstacle is not None:
        raise _not_cached(dataset, obstacle)
    try:
        return Path(download())
    except GatedRepoError:
        raise DataError(
            f"dataset {dataset.name!r} is gated: accept its terms at {page}, then run `hf auth login` or set HF_TOKEN"
        ) from None
    except RepositoryNotFoundError:
        raise DataError(
            f"dataset {dataset.name!r}: the hub has no {dataset.repository} that you may read; see {page}, and run "
            "`hf auth login` or set HF_TOKEN if it is gated"
        ) from None
    except LocalEntryNotFoundError as error:
        raise _not_cached(dataset, f"the hub does not answer ({_first_line(error.__cause__ or error)})") from None
    except EntryNotFoundError:
        raise DataError(
            f"dataset {dataset.name!r}: {dataset.repository} has no {file} at {dataset.revision[:12]}"
        ) from None
    except Exception as error:  # The client's errors have no common base, and come from its HTTP library too.
        raise DataError(
            f"dataset {dataset.name!r} cannot be fetched from {page}: {type(error).__name__}: {_first_line(error)}"
        ) from None


def _not_cached(dataset: HubDataset, obstacle: str) -> DataError:
    return DataError(
        f"dataset {dataset.name!r} is not in the cache and {obstacle}: run `cleaner data check {dataset.name}` once with a "
        "network, point HF_HUB_CACHE to a cache that has it, or give the path of a file"
    )


def _why_unreachable(hub: str) -> str | None:
    """Says why nobody answers at an address, at once where the client would try again and again; ``None`` if one does.

    Through a proxy there is no telling; the client finds out.
    """
    address = urlsplit(hub)
    if getproxies().get(address.scheme) or not address.hostname:
        return None
    try:
        socket.create_connection((address.hostname, address.port or _PORTS.get(address.scheme, 443)), _CONNECT_S).close()
    except OSError as error:
        return f"the hub cannot be reached ({hub}: {_first_line(error)})"
    return None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
