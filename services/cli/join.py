"""``ragtree join``: make this machine a part of the stack that runs on another one."""

from typing import Annotated

import typer

from services.cli.output import errors
from services.config import load_config


def join(
    head: Annotated[
        str, typer.Argument(metavar="HEAD:PORT", help="The first machine and its cluster.port.", show_default=False)
    ],
    wait_s: Annotated[
        float, typer.Option(help="Give up if this machine is not a member after this many seconds.")
    ] = 120.0,
) -> None:
    """Run engines of another machine's stack on this machine. Ctrl-C leaves it.

    The first machine runs `ragtree up` with cluster.port. Both need the same RAGTree, Ray's token
    (~/.ray/auth_token) and, to read each other's KV, the same generator.kv.peers.key_file. Folders, memory and
    addresses are this machine's own options; all else comes from the first machine.
    """
    config = load_config()
    config.observability.configure_logging()
    # Ray takes a second to import.
    from services.cluster.member import Member

    def joined() -> None:
        room = config.cluster.engines
        errors.print(f"Joined {head} with room for {room} instance{'s' * (room != 1)}. Ctrl-C leaves.", highlight=False)

    Member(config, head).run(wait_s, lambda what: errors.print(what, highlight=False, markup=False), joined)
