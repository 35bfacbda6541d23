"""``python -m cleaner_env.cli``: the ``cleaner`` command where its script is not on the path."""

from cleaner_env.cli import main

main()
