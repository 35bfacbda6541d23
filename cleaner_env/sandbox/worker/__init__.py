"""The program that runs inside every sandbox: standard library only, CPython 3.8 or later, nothing else of this package.

It is started as the top-level package ``worker`` (see `launch_command`), so that the same folder can be copied into a
container. The processes, outermost first:

* the *zygote* has the usual modules imported, and forks one keeper per session (`worker.zygote`);
* the *keeper* never runs foreign code; it keeps the clock, counts output, kills, and rolls files back (`worker.keeper`);
* the *interpreter* holds a session's state and waits; each cell runs in a fork of it, which takes its place when the cell
  succeeds and is dropped when it fails (`worker.interpreter`).
"""
