"""A process that shares a tier with a test and writes a node: ``tier_process.py arena|disk FOLDER NUMBER STAMP``.

It prints "begun" when two pages are written, waits for a line, prints "published", and waits to be killed.
"""

import sys
from pathlib import Path

from tier_contract import content_of, hand_out, make_node
from tiers_under_test import open_arena, open_disk


def main(kind: str, folder: str, number: str, stamp: str) -> None:
    node = make_node(int(number))
    tier = {"arena": open_arena, "disk": open_disk}[kind](Path(folder))
    with tier.writing(node, hand_out(node, int(stamp))) as writer:
        for index, page in enumerate(content_of(node)):
            writer.page(index)[:] = page
            if index == 1:
                print_and_wait("begun")
    print_and_wait("published")


def print_and_wait(word: str) -> None:
    print(word, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
