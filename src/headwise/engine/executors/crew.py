"""Worker processes, each with its own pipe.

They share no queue, lock or counter from `multiprocessing`: these use named semaphores in /dev/shm, which stay there
forever if the whole process group is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from ...errors import HeadwiseError

Work = Callable[[Any], Any]
START = "forkserver" if sys.platform == "linux" else "spawn"
"""how workers start: on Linux as forks of a process that imports torch once, and computes nothing"""


def start_server(module: str) -> None:
    """Start that process, which imports this module while the caller does something else."""
    if START == "forkserver":
        from multiprocessing import forkserver  # Windows has none

        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        forkserver.set_forkserver_preload([module])
        with _without_main():
            forkserver.ensure_running()


class WorkerLostError(Exception):
    """A worker was killed or exited; its current task is lost."""


class _Worker(NamedTuple):
    process: BaseProcess
    pipe: Connection


class _Raised(NamedTuple):
    error: Exception


class Crew:
    """`size` workers; one that ended is replaced when it is needed.

    `begin(number)` runs once in each worker, with the worker's number, and returns the function that does its tasks.
    """

    def __init__(self, size: int, begin: Callable[[int], Work]) -> None:
        self.size = size
        self._begin = begin
        self._workers: dict[int, _Worker] = {}
        for number in range(size):
            self._start(number)

    def run(self, tasks: Iterable[Any]) -> Iterator[Any]:
        """Yield results as they come; each task goes to the next free worker.

        Workers that are still busy when the caller stops iterating, or when another one fails, are killed.
        """
        left = deque(tasks)
        busy: dict[Connection, int] = {}
        try:
            self._hand_out(left, busy)
            while busy:
                for pipe in wait(list(busy)):
                    assert isinstance(pipe, Connection)
                    with _report_lost_worker():
                        result = pipe.recv()
                    del busy[pipe]
                    if isinstance(result, _Raised):
                        raise result.error
                    self._hand_out(left, busy)
                    yield result
        finally:
            for number in busy.values():
                self._end(number)

    def close(self) -> None:
        for number in list(self._workers):
            self._end(number)

    def _hand_out(self, left: deque[Any], busy: dict[Connection, int]) -> None:
        while left and len(busy) < self.size:
            number = self._free(set(busy.values()))
            pipe = self._workers[number].pipe
            busy[pipe] = number
            with _report_lost_worker():
                pipe.send(left.popleft())

    def _free(self, busy: set[int]) -> int:
        for number in self._workers:
            if number not in busy:
                return number
        number = next(k for k in range(self.size) if k not in self._workers)
        self._start(number)
        return number

    def _start(self, number: int) -> None:
        context: Any = multiprocessing.get_context(START)
        ours, theirs = context.Pipe()
        args = theirs, self._begin, number, dict(os.environ)
        process = context.Process(target=_serve, args=args, daemon=True)
        with _without_main():
            process.start()
        theirs.close()  # or the pipe would stay open when the worker dies
        self._workers[number] = _Worker(process, ours)

    def _end(self, number: int) -> None:
        process, pipe = self._workers.pop(number)
        process.kill()
        process.join()
        pipe.close()


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the program's main file, which a new process would run again without needing it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _report_lost_worker() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError) as error:
        raise WorkerLostError from error


def _serve(pipe: Connection, begin: Callable[[int], Work], number: int, environment: dict[str, str]) -> None:
    """A worker's loop, until its driver is gone."""
    os.environ.clear()
    os.environ.update(environment)  # the server may have begun with another one
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which lets the round finish
    threading.Thread(target=_end_with_driver, daemon=True).start()
    work = _begin(begin, number)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            task = pipe.recv()
            try:
                result = work(task)
            except Exception as error:
                result = _Raised(_portable(error))
            pipe.send(result)


def _begin(begin: Callable[[int], Work], number: int) -> Work:
    """The function that does the tasks; if it can't be made, every task fails with the reason."""
    try:
        return begin(number)
    except Exception as error:
        why = error

    def fail(_: Any) -> Any:
        raise why

    return fail


def _portable(error: Exception) -> Exception:
    """The error in a form that every process can unpickle, with a note of where it was raised."""
    known = isinstance(error, (HeadwiseError, MemoryError))
    copy = type(error)(str(error)) if known else RuntimeError(f"{type(error).__name__}: {error}")
    copy.add_note(f"in a worker:\n{traceback.format_exc()}")
    return copy


def _end_with_driver() -> None:
    """Exit once the driver is gone: if it was killed, it can't stop a busy worker."""
    driver = multiprocessing.parent_process()
    assert driver is not None  # this runs in a worker
    driver.join()
    os._exit(1)
