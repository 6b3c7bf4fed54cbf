"""The command line, ``ragtree``: one module per command, put together in ``app``."""
