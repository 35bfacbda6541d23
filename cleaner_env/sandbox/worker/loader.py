"""Starts the worker in a container whose image knows nothing of it: the sources come over standard input."""

import importlib.machinery
import json
import os
import struct
import sys


class _Sources:
    """Finds and loads modules of which it has the sources."""

    def __init__(self, sources):  # type: ignore[no-untyped-def]
        self.sources = sources

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name in self.sources:
            return importlib.machinery.ModuleSpec(name, self, is_package="." not in name)  # type: ignore[arg-type]
        return None

    def create_module(self, spec):  # type: ignore[no-untyped-def]
        return None

    def exec_module(self, module):  # type: ignore[no-untyped-def]
        module.__file__ = f"<{module.__name__}>"
        exec(compile(self.sources[module.__name__], module.__file__, "exec"), module.__dict__)


def _read_exactly(size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(0, size - len(data))
        if not more:
            os._exit(0)
        data += more
    return data


def _main() -> None:
    (length,) = struct.unpack("!I", _read_exactly(4))
    message = json.loads(_read_exactly(length))
    finder = _Sources(message["sources"])  # type: ignore[no-untyped-call]
    sys.meta_path.insert(0, finder)
    from worker.contained import main  # type: ignore[import-not-found]

    sys.meta_path.remove(finder)
    for name in message["sources"]:
        sys.modules.pop(name, None)  # The names are free for the cells' own modules.
    main(message["options"])


if __name__ == "__main__":
    _main()
