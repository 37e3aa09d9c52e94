"""Errors that a user can fix, each one sentence; the command line turns them into exit code 2."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class HeadwiseError(Exception):
    """A user's mistake: the message names the field, the value and what is allowed.

    >>> Experiment(rounds=0)
    Traceback (most recent call last):
    headwise.errors.ConfigError: rounds is 0, but must be from 1 to 1,000,000.
    """


class ConfigError(HeadwiseError):
    """A setting that is unknown, of the wrong type or out of range."""


class DataError(HeadwiseError):
    """A data set that is missing, damaged, hostile or can't be partitioned as asked."""


class RunError(HeadwiseError):
    """A run folder that can't be read, written or resumed."""


class NoScoreError(HeadwiseError):
    """A run or a search that ended without any score, usually since models diverged."""


class AccountingError(HeadwiseError):
    """A use of private data with no known epsilon; the message continues a sentence that names the method."""


class ClientError(HeadwiseError):
    """A client's half of a method raised; names method, client, round and phase."""


class ServerError(HeadwiseError):
    """The server's half of a method raised; names method, round and phase."""


METHOD_ERRORS = (ConfigError, ClientError, ServerError, NoScoreError)
"""why a method has no result on some data; any other error concerns the data, the folder or the disk"""


@contextmanager
def explain_missing(sentence: str, kind: type[HeadwiseError] = ConfigError) -> Iterator[None]:
    """Turn a package that can't be imported into this sentence."""
    try:
        yield
    except ImportError as error:
        raise kind(sentence) from error


OTHER_NAMES = {
    "learning_rate": "lr",
    "eta": "lr",
    "fraction": "ratio",
    "participation": "ratio",
    "local": "standalone",
}
"""what else people call a setting or a method"""


def nearest(word: str, known: Iterable[str], intro: str = "allowed are") -> str:
    """A hint for an unknown name: the closest known one, or all of them, "column 2" before "column 10"."""
    names = sorted({*known}, key=lambda name: [int(p) if p.isdecimal() else p for p in re.split(r"(\d+)", name)])
    if close := closest(word, names):
        return f"did you mean '{close}'?"
    return f"{intro} {', '.join(names)}." if names else "there are none."


def pluralize(n: int, noun: str) -> str:
    """1 class, 2 classes, 1,000 samples."""
    return f"{n:,} {noun}{'' if n == 1 else 'es' if noun.endswith('s') else 's'}"


def shorten(error: Exception) -> str:
    """What an error says, as part of a sentence."""
    return " ".join(str(error).split())[:200]


def capitalize(text: str) -> str:
    """Unlike `str.capitalize`, leaves all but the first letter as it is."""
    return text[:1].upper() + text[1:]


def closest(word: str, known: Iterable[str]) -> str:
    """The known name that was probably meant, whatever its case and punctuation; empty if none is close."""
    names = [*known]
    other = OTHER_NAMES.get(word.lower())
    if other in names:
        return other
    plain = {text: name for name in names if (text := _letters(name))}
    if _letters(word) in plain:
        return plain[_letters(word)]
    if near := difflib.get_close_matches(word, names):
        return near[0]
    return next((plain[text] for text in difflib.get_close_matches(_letters(word), plain)), "")


def _letters(name: str) -> str:
    """Letters and digits, in lower case: fedavgft for FedAvg+FT."""
    return "".join(c for c in name.lower() if c.isalnum())
