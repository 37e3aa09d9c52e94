"""The outermost handler: any exception becomes one sentence on stderr and an exit code, never a traceback."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

import click

from .. import __version__
from ..disk.jsontext import escape_controls
from ..disk.paths import is_text
from ..errors import ConfigError, HeadwiseError

MISTAKE = 2
"""exit code of a user's mistake"""
BUG = 70
"""of a bug in Headwise (EX_SOFTWARE)"""
INTERRUPTED = 130
"""of Ctrl-C"""
HINT = "(use headwise --traceback COMMAND to see where)"


class GlobalOptions:
    traceback = False


def exit_code(command: Callable[[], Any], options: GlobalOptions) -> int:
    """Run the command; whatever it raises is reported here."""
    try:
        _check_surroundings()
        code = command()
    except click.exceptions.NoArgsIsHelpError as error:
        _print_to_stderr(error.format_message())
        return MISTAKE
    except click.exceptions.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, click.Abort):
        _print_sentence("interrupted.")
        return INTERRUPTED
    except Exception as error:
        if isinstance(error, OSError) and _is_from_echo(error):
            return _stdout_closed(error)
        if options.traceback:
            _print_to_stderr("".join(traceback.format_exception(error)).rstrip())
        return _print_error(error, "" if options.traceback else HINT)
    return code if isinstance(code, int) else 0


def _check_surroundings() -> None:
    """Relative paths need a current folder that exists."""
    try:
        here = os.getcwd()
    except OSError as error:
        raise ConfigError(f"the current folder is gone ({error.strerror}): change to another one.") from error
    if not is_text(here):
        raise ConfigError(f"the current folder is {here!r}, but must have a name in UTF-8.")


def check_texts(arguments: list[str]) -> None:
    """Refuse arguments that a JSON file could not hold."""
    for text in arguments:
        if not is_text(text):
            raise ConfigError(f"{text!r} is an argument, but must be UTF-8 without NUL.")


def _print_error(error: Exception, hint: str) -> int:
    """Print the sentence for this error; return its exit code."""
    own = _find_own_line(error)
    if isinstance(error, (HeadwiseError, click.ClickException)):
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        for note in getattr(error, "__notes__", ()):  # such as what changed in a file of the user's
            _print_to_stderr(note)
        _print_sentence(f"{text} {hint}" if own else text)
    elif isinstance(error, MemoryError) or "allocate memory" in str(error):  # torch has no class for it on a CPU
        _print_sentence(f"this needs more memory than is available: {error or 'choose something smaller'}.")
    elif own:
        _print_sentence(f"{own} raised {type(error).__name__}: {error}. {hint}")
    else:
        _print_sentence(f"this is a bug in Headwise ({type(error).__name__}: {error}): {_write_log(error)}")
        return BUG
    return MISTAKE


def _write_log(error: Exception) -> str:
    """Write the traceback to a log file, or to stderr if that fails; return what to do with it."""
    what = f"headwise {__version__}, Python {sys.version}\n{shlex.join(sys.argv)}\n"
    text = f"{what}\n{''.join(traceback.format_exception(error))}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="headwise-bug-", suffix=".log", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as log:
            log.write(text)
    except OSError:
        _print_to_stderr(text)
        return "please report it with the lines above."
    return f"please report it with {log.name}."


def _find_own_line(error: BaseException | None) -> str:
    """The line of the user's own file that raised the error; '' if it came from elsewhere."""
    while error is not None:
        frames = [*traceback.walk_tb(error.__traceback__)]
        own = [(f.f_code.co_filename, line) for f, line in frames if _module(f).startswith("headwise_user_")]
        if own:
            return f"{own[-1][0]}:{own[-1][1]}"
        error = error.__cause__
    return ""


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _is_from_echo(error: OSError) -> bool:
    """Whether it was `click.echo` that failed."""
    *_, (last, _) = traceback.walk_tb(error.__traceback__)
    return _module(last) == "click.utils"


def _stdout_closed(error: OSError) -> int:
    """Stdout can't be written, and Python must not flush it again at exit; a closed pipe is not an error."""
    sys.stdout = None
    if isinstance(error, BrokenPipeError):
        return 0
    _print_sentence(f"the output can't be written: {error.strerror}.")
    return MISTAKE


def _print_sentence(text: str) -> None:
    line = re.sub(r"[^\s'\"]{1000,}", lambda word: f"{word[0][:60]}...", " ".join(text.split()))
    _print_to_stderr(f"headwise: {escape_controls(line)}")


def _print_to_stderr(text: str) -> None:
    try:
        click.echo(text, err=True)
    except OSError:  # stderr is gone as well
        sys.stderr = None
