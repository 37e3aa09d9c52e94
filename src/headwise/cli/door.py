"""The last handler: whatever a command raises becomes one sentence on stderr and an exit code, never a traceback."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

import click

from .. import __version__
from ..disk.paths import is_text
from ..errors import ConfigError, HeadwiseError

MISTAKE, BUG, INTERRUPTED = 2, 70, 130
"""exit codes: of the user, of Headwise (EX_SOFTWARE), of Ctrl-C"""
HINT = "(headwise --traceback, before the command, shows where)"


class Wanted:
    """What stands between `headwise` and the command."""

    traceback = False


def exit_code(command: Callable[[], Any], wanted: Wanted) -> int:
    """Of the command, which has said what there is to say."""
    try:
        _check_surroundings()
        code = command()
    except click.exceptions.NoArgsIsHelpError as error:
        _say(error.format_message())
        return MISTAKE
    except click.exceptions.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, click.Abort):
        _tell("interrupted.")
        return INTERRUPTED
    except Exception as error:
        if isinstance(error, OSError) and _printing(error):
            return _unheard(error)
        if wanted.traceback:
            _say("".join(traceback.format_exception(error)).rstrip())
        return _explained(error, "" if wanted.traceback else HINT)
    return code if isinstance(code, int) else 0


def _check_surroundings() -> None:
    """What every path that is not a full one relies on."""
    try:
        here = os.getcwd()
    except OSError as error:
        raise ConfigError(f"the current folder is gone ({error.strerror}): change to another one.") from error
    if not is_text(here):
        raise ConfigError(f"the current folder is {here!r}, but must have a name in UTF-8.")


def check_texts(arguments: list[str]) -> None:
    """What a JSON file and a message could not hold is refused before it is used."""
    for text in arguments:
        if not is_text(text):
            raise ConfigError(f"{text!r} is an argument, but must be a text in UTF-8 without NUL.")


def _explained(error: Exception, hint: str) -> int:
    """The sentence for this error, and its exit code."""
    own = _own_line(error)
    if isinstance(error, (HeadwiseError, click.ClickException)):
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        _tell(f"{text} {hint}" if own else text)
    elif isinstance(error, MemoryError) or "allocate memory" in str(error):  # torch has no class for it on a CPU
        _tell(f"this needs more memory than there is: {error or 'choose something smaller'}.")
    elif own:
        _tell(f"{own} raised {type(error).__name__}: {error}. {hint}")
    else:
        _tell(f"this is a bug of Headwise ({type(error).__name__}: {error}): {_logged(error)}")
        return BUG
    return MISTAKE


def _logged(error: Exception) -> str:
    """Where the traceback is; on stderr, if there is no other place."""
    what = f"headwise {__version__}, Python {sys.version}\n{shlex.join(sys.argv)}\n"
    text = f"{what}\n{''.join(traceback.format_exception(error))}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="headwise-bug-", suffix=".log", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as log:
            log.write(text)
    except OSError:
        _say(text)
        return "please report it with the lines above."
    return f"please report it with {log.name}."


def _own_line(error: BaseException | None) -> str:
    """The line of the user's own method, data or model file that this error comes from; '' if it does not."""
    while error is not None:
        frames = [*traceback.walk_tb(error.__traceback__)]
        own = [(f.f_code.co_filename, line) for f, line in frames if _module(f).startswith("headwise_user_")]
        if own:
            return f"{own[-1][0]}:{own[-1][1]}"
        error = error.__cause__
    return ""


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _printing(error: OSError) -> bool:
    """Whether it was `click.echo` that failed."""
    *_, (last, _) = traceback.walk_tb(error.__traceback__)
    return _module(last) == "click.utils"


def _unheard(error: OSError) -> int:
    """Stdout or stderr takes no more; Python would try again at its end. A reader that has gone wants nothing more."""
    sys.stdout = None
    if isinstance(error, BrokenPipeError):
        return 0
    _tell(f"the output can't be written: {error.strerror}.")
    return MISTAKE


def _tell(text: str) -> None:
    """One line on stderr."""
    line = " ".join(text.split())
    _say("headwise: " + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line))


def _say(text: str) -> None:
    try:
        click.echo(text, err=True)
    except OSError:  # nobody can be told
        sys.stderr = None
