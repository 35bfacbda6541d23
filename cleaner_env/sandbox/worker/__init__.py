"""The program that runs inside every sandbox: standard library only, CPython 3.8 or later, nothing else of this package.

It runs as the top-level package ``worker``. Its sources are sent into a container when that starts (`worker.loader`), so
any image with Python will do. The processes, outermost first:

* the *zygote* has the usual modules imported, and forks one keeper per session (`worker.zygote`); in a container, which has
  one session at a time, it is itself the keeper (`worker.contained`);
* the *keeper* never runs foreign code; it keeps the clock, counts output, kills, and rolls files back (`worker.keeper`);
* the *interpreter* holds a session's state and waits; each cell runs in a fork of it, which takes its place when the cell
  succeeds and is dropped when it fails (`worker.interpreter`).
"""
