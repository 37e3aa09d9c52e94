"""`check_method(MyMethod)` checks that a method, ours or a user's own, meets the contract.

Imports the engine, runs and everything below them.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator

from ..app import registry
from . import behaviour, claims, samebits
from .toy import AnyMethod
from .watching import Watched
from .watching import record_messages as record_messages
from .watching import up_of as up_of

Check = Callable[[AnyMethod], None]

CHECKS: dict[str, Check] = {
    "card": claims.card,
    "messages survive encoding": behaviour.records_round_trip,
    "inputs stay unchanged": behaviour.inputs_untouched,
    "same seed, same bits": samebits.same_seed_same_bits,
    "any order of answers, same bits": samebits.order_does_not_matter,
    "any group of clients, same bits": samebits.group_does_not_matter,
    "resumed run, same bits": samebits.resume_is_uninterrupted,
    "partial participation": behaviour.partial_participation,
    "failed clients leave no trace": behaviour.refused_replies_leave_no_trace,
    "clients that join late": behaviour.unseen_client,
    "clients with few samples": behaviour.awkward_clients,
    "BatchNorm": behaviour.batch_norm,
    "different networks": behaviour.different_networks,
    "download is used": claims.download_is_used,
    "nothing private is sent": claims.nothing_private,
    "bytes as the card says": claims.bytes_as_the_card_says,
    "sums as the card says": claims.sums_as_the_card_says,
    "every hyperparameter counts": claims.every_hyperparameter_counts,
    "differs from local training": claims.differs_from_standalone,
    "learns": behaviour.learns,
    "tasks as the card says": behaviour.tasks_as_the_card_says,
    "processes and threads, same bits": samebits.pool_is_serial,
    "documentation": claims.documentation,
}
"""the checks by name, in the order they run; "processes and threads, same bits" starts processes"""


def find_method(name: str) -> type[AnyMethod]:
    """The class of a method: built in, of another package, or in a file of your own such as ``"my_method.py"``."""
    return registry.find("method", name)


def check_method(method: AnyMethod | type[AnyMethod]) -> None:
    """Run all checks on a method, given as an instance or as a class with its defaults.

    Failures raise one `AssertionError` at the end: a line for each, with the method, the check and what is wrong.
    A script can call it without a `__main__` guard.
    """
    if problems := [problem for _, problem in failures(method) if problem]:
        raise AssertionError("\n".join(problems))


def failures(method: AnyMethod | type[AnyMethod]) -> Iterator[tuple[str, str]]:
    """Each check by name as it ends, and what is wrong; nothing if it passed."""
    for name in CHECKS:
        try:
            run_check(name, method)
            yield name, ""
        except AssertionError as error:
            yield name, str(error)


def run_check(name: str, method: AnyMethod | type[AnyMethod]) -> None:
    if multiprocessing.parent_process() is not None:  # a worker imports the script that called this
        return
    cls = method if isinstance(method, type) else type(method)
    try:
        CHECKS[name](method() if isinstance(method, type) else method)
    except Exception as error:
        what = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        what = " ".join(what.replace(Watched.__name__, cls.__name__).split())
        raise AssertionError(f"{cls.__name__} fails the check {name!r}: {what}") from error
