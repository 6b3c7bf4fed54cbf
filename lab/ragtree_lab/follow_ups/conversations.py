"""Conversations whose last question is searched: follow-ups, questions that stand alone, and changes of subject.

They are about the demo corpus. ``found_in`` are the modules, classes or functions that answer the last question; a
document below one of them counts too.
"""

from typing import NamedTuple


class Conversation(NamedTuple):
    """What a user asks, in order; the last question is about ``found_in``."""

    asked: tuple[str, ...]
    found_in: tuple[str, ...]


FOLLOW_UPS = (
    Conversation(("How do I read a JSON file?", "And how do I write one?"), ("json.dump", "json.dumps")),
    Conversation(
        ("Which class counts how often values occur?", "How do I get its most common ones?"), ("collections.Counter",)
    ),
    Conversation(("How do I parse command line options?", "Can it have subcommands?"), ("argparse",)),
    Conversation(("What does shutil.copy do?", "Which function copies whole folders instead?"), ("shutil.copytree",)),
    Conversation(("How can I make a temporary file?", "And a temporary directory?"), ("tempfile",)),
    Conversation(("How do I run another program?", "How do I get what it prints?"), ("subprocess",)),
    Conversation(("What is a decimal number in Python?", "How is its precision set?"), ("decimal",)),
    Conversation(("How do I compress data with gzip?", "And with bz2?"), ("bz2",)),
    Conversation(("How do I match a regular expression?", "How do I replace what it finds?"), ("re.sub", "re.subn")),
    Conversation(("Which module reads CSV files?", "Can it give me dictionaries?"), ("csv.DictReader",)),
    Conversation(("How do I open a zip archive?", "And a tar archive?"), ("tarfile",)),
    Conversation(("How do I cache the results of a function?", "How large does it get?"), ("functools.lru_cache",)),
    Conversation(("How do I connect to a database file with SQLite?", "How do I make a backup of it?"), ("sqlite3",)),
    Conversation(("What does heapq do?", "How do I take the smallest items?"), ("heapq.nsmallest", "heapq.heappop")),
    Conversation(("How do I start a thread?", "How do I protect data that several of them share?"), ("threading",)),
    Conversation(("How do I send an email?", "How do I log in to the server first?"), ("smtplib",)),
    Conversation(("What is asyncio?", "How do I wait for several tasks?"), ("asyncio",)),
    Conversation(("How do I hash a password with SHA-256?", "Is there a key derivation for it?"), ("hashlib",)),
    Conversation(
        ("How do I measure how long code takes?", "And which functions take most of it?"),
        ("profile", "cProfile", "pstats"),
    ),
    Conversation(
        ("How do I draw random numbers?", "And without repetition?"),
        ("random.sample", "random.Random.sample", "random"),
    ),
    Conversation(("How do I parse XML?", "Which part of it writes a tree to a file?"), ("xml",)),
    Conversation(("How do I get the path of the current folder?", "How do I list what is in it?"), ("os", "pathlib")),
    Conversation(("What is a dataclass?", "How do I make it immutable?"), ("dataclasses",)),
    Conversation(
        ("How do I format a date?", "And how do I read one from text?"), ("datetime", "time.strptime", "_strptime")
    ),
    Conversation(("How do I write tests in Python?", "How do I replace an object in them?"), ("unittest.mock",)),
    Conversation(("How do I serve files over HTTP?", "How do I handle POST there?"), ("http.server",)),
    Conversation(("How do I fetch a web page?", "How do I add headers?"), ("urllib.request",)),
    Conversation(("How do I escape HTML?", "And the other way round?"), ("html.unescape",)),
    Conversation(("How do I compute a mean?", "And the median?"), ("statistics.median",)),
    Conversation(("How do I log a message?", "How do I send these to a file?"), ("logging",)),
)
"""The last question names its subject only together with the first."""

ALONE = (
    Conversation(("How do I read a JSON file?", "Which function of the json module writes to a file?"), ("json.dump",)),
    Conversation(
        ("How do I compute a mean?", "How do I compute a standard deviation with statistics?"),
        ("statistics.stdev", "statistics.pstdev"),
    ),
    Conversation(("How do I start a thread?", "How do I start a process with multiprocessing?"), ("multiprocessing",)),
    Conversation(("How do I open a zip archive?", "How do I extract all members of a tar archive?"), ("tarfile",)),
    Conversation(("How do I parse XML?", "How do I parse an INI configuration file?"), ("configparser",)),
)
"""The last question is near the first, but stands alone."""

CHANGES = (
    Conversation(("How do I read a JSON file?", "How do I generate a random UUID?"), ("uuid",)),
    Conversation(
        ("How do I parse command line options?", "How do I compute a logarithm?"), ("math", "cmath", "decimal")
    ),
    Conversation(("What is asyncio?", "How do I draw a turtle on the screen?"), ("turtle",)),
    Conversation(("How do I send an email?", "How do I sort a list with binary search insertion?"), ("bisect",)),
    Conversation(("How do I serve files over HTTP?", "How do I copy an object deeply?"), ("copy",)),
    Conversation(("How do I hash a password with SHA-256?", "How do I print a calendar of a month?"), ("calendar",)),
    Conversation(("How do I run another program?", "How do I compare two texts line by line?"), ("difflib",)),
    Conversation(("How do I format a date?", "How do I play with fractions of integers?"), ("fractions",)),
    Conversation(("How do I write tests in Python?", "How do I encode bytes as base64?"), ("base64",)),
    Conversation(("How do I log a message?", "How do I walk through combinations of items?"), ("itertools",)),
)
"""The last question is about something else."""
