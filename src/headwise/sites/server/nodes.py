"""The server's view of a deployment's nodes: they connect, introduce themselves, vanish and return."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

from ... import __version__
from ...disk.jsontext import to_json
from ...settings.experiment import Experiment
from ...settings.fields import build
from ..facts import ClientFacts, Introduction, write_for_sites
from ..transport.envelope import Lost, NodeSeen, SiteMessage, make_printable
from ..transport.messages import UNREADABLE, load_text

FIRST_PAUSE = 0.05
LAST_PAUSE = 0.5
GROWTH = 1.3
"""seconds between polls, each of which is a request to the SuperLink: at first, at last, and from one to the next"""
LOOK = 1.0
"""seconds between checks for nodes that come and go, while others answer"""
PATIENCE = 300.0
"""seconds to wait for a lost node: after a kill, Flower takes a minute to let it back in"""
SILENCE = 10.0
"""seconds until the run's followers learn which nodes have not answered"""
LONG = 3600.0
"""seconds until a message expires if no deadline is set"""


Kind = Literal["train", "query", "query.refused"]


class Transport(Protocol):
    """Carries messages; implemented by Flower."""

    def nodes(self) -> Mapping[int, NodeSeen]: ...

    def send(self, node: int, message: SiteMessage, kind: Kind, seconds: float) -> str | None:
        """Send a message that expires after `seconds`; return its number, or None if the node is gone."""
        ...

    def collect(self, numbers: Sequence[str]) -> list[tuple[str, SiteMessage | Lost]]:
        """The replies to these messages that have arrived."""
        ...


class Roster(NamedTuple):
    """What sites have reported since the run first started."""

    facts: dict[int, ClientFacts]
    homes: dict[int, int]
    """each client's node; no other node may answer for it"""
    names: Mapping[int, str] = MappingProxyType({})
    """each node's site"""


class NodeStatus(NamedTuple):
    name: str
    clients: tuple[int, ...]
    refusal: str | None
    """why the node can't take part"""
    since: str = ""
    """when it connected"""


class Nodes:
    """The link to the sites' nodes; a new node is asked who it is, and used from the next exchange on."""

    def __init__(
        self,
        transport: Transport,
        experiment: Experiment,
        known: Roster,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._transport = transport
        self._clients = range(experiment.clients or 0)
        self._say = say
        self._question = SiteMessage(to_json({"experiment": write_for_sites(experiment)}), [])
        self.known = known
        self.keep: Callable[[Roster], None] = lambda known: None
        self.statuses: dict[int, NodeStatus] = {}
        self.registered: frozenset[str] = frozenset()
        """names of all sites that may connect, as far as they are known"""
        self.clash: str | None = None
        """two sites that claim the same client, or whose data differ: nothing can start"""
        self._asking: dict[str, tuple[int, str]] = {}
        self._names: dict[int, str] = {**known.names}
        self._here: Mapping[int, NodeSeen] = {}

    def node_of(self, client: int) -> int | None:
        return next((n for n, h in self.statuses.items() if client in h.clients and h.refusal is None), None)

    def name_of(self, node: int) -> str:
        return self._names.get(node, f"node {node}")

    @property
    def roster(self) -> Roster:
        return self.known._replace(names=self._names)

    def wait(self, clients: Sequence[int], seconds: float, *, first: bool = False) -> dict[int, str]:
        """Wait up to `seconds` for these clients' nodes; return why each missing client is missing.

        Before the `first` round it ends as soon as two sites clash.
        """
        until = time.monotonic() + seconds
        pauses = _pauses()
        line = ""
        while True:
            self.look()
            refused = {c: h.refusal for h in self.statuses.values() if h.refusal for c in h.clients}
            missing = [c for c in clients if self.node_of(c) is None]
            if all(c in refused for c in missing) or (self.clash and first) or time.monotonic() > until:
                late = f"no site connected for it within {seconds:g} seconds"
                return {c: refused.get(c, late) for c in missing}
            if line != (line := self.describe_wait(clients, missing)):
                self._say(line)
            time.sleep(next(pauses))

    def describe_wait(self, clients: Sequence[int], missing: Sequence[int]) -> str:
        used = sorted({h.name for h in self.statuses.values() if h.refusal is None})
        new = sorted(self._here[n].name or f"node {n}" for n, _ in self._asking.values() if n in self._here)
        homes = {self._names.get(self.known.homes.get(c, -1)) for c in missing}
        seen = {*used, *new, *(each.name for each in self._here.values())}
        names = sorted(({n for n in homes if n} or self.registered) - seen)
        alone = all(len(h.clients) == 1 for h in self.statuses.values())
        expected = min(len(self.registered) or len(self._clients), len(self._clients))
        count = f"{len(used) + len(new)} of {expected} sites are here"
        if not alone:
            count = f"{len(clients) - len(missing)} of {len(clients)} clients are here"
        if names:
            return f"{count}; {', '.join(names)} {'is' if len(names) == 1 else 'are'} missing"
        if new:
            return f"{count}; waiting for {', '.join(new)} to introduce {'itself' if len(new) == 1 else 'themselves'}"
        return f"{count}; missing: {', '.join(f'client {c}' for c in missing)}"

    def look(self) -> None:
        """Ask new nodes to introduce themselves, and read the introductions that have arrived."""
        self._here = here = self._transport.nodes()
        for node in [n for n, h in self.statuses.items() if n not in here or here[n].since != h.since]:
            del self.statuses[node]  # its answer may differ when it returns
        asking = {node for node, since in self._asking.values() if node in here and here[node].since == since}
        for node in here.keys() - self.statuses.keys() - asking:
            if number := self._transport.send(node, self._question, "query", PATIENCE):
                self._asking[number] = node, here[node].since
        for number, reply in self._transport.collect(list(self._asking)) if self._asking else ():
            node, since = self._asking.pop(number)
            if isinstance(reply, SiteMessage):
                self._receive(node, since, reply)

    def exchange(
        self, messages: Mapping[int, SiteMessage], seconds: float | None
    ) -> Iterator[tuple[int, SiteMessage | Lost]]:
        waiting: dict[str, tuple[int, str]] = {}
        self._here = self._transport.nodes()
        for node, message in messages.items():
            since = self._here.get(node, NodeSeen()).since
            if number := self._transport.send(node, message, "train", seconds or LONG):
                waiting[number] = node, since
            else:
                yield node, self._forget(node, Lost(f"node {node} is not connected"))
        pauses = _pauses()
        line = ""
        looked = begun = time.monotonic()
        while waiting:
            if time.monotonic() - looked > LOOK:
                self.look()
                looked = time.monotonic()
            replies = self._transport.collect(list(waiting))
            for number, reply in replies or self._find_restarted(waiting):
                node, _ = waiting.pop(number)
                pauses = _pauses()
                yield node, self._forget(node, reply) if isinstance(reply, Lost) else reply
            if waiting and time.monotonic() - begun > SILENCE:
                names = sorted(self.name_of(node) for node, _ in waiting.values())
                if line != (line := f"waiting for {', '.join(names)}"):
                    self._say(line)
            time.sleep(next(pauses) if waiting else 0)

    def _find_restarted(self, waiting: Mapping[str, tuple[int, str]]) -> list[tuple[str, Lost]]:
        """Messages to nodes that have restarted since: nobody will answer them."""
        here = self._here
        gone = [(k, n) for k, (n, since) in waiting.items() if n in here and here[n].since != since]
        return [(k, Lost(f"{self.name_of(n)} has restarted")) for k, n in gone]

    def renew(self, clients: Sequence[int], patiently: bool) -> None:
        self.wait(clients, PATIENCE if patiently else 0.0)

    def close(self) -> None:
        """Nothing to release: the nodes stay connected."""

    def _forget(self, node: int, lost: Lost) -> Lost:
        """A late node is still connected; any other must introduce itself again."""
        if lost.reason != "late":
            self.statuses.pop(node, None)
        return lost

    def _receive(self, node: int, since: str, reply: SiteMessage) -> None:
        """Record a node's introduction; a node that contradicts earlier facts is not used."""
        try:
            if reply.records:
                raise ValueError("it has records")
            new = build(Introduction, load_text(reply))
        except UNREADABLE as error:
            new = Introduction(f"node {node}", (), (), "", f"its introduction can't be read: {error}")
        new = replace(new, name=make_printable(new.name), refusal=new.refusal and make_printable(new.refusal))
        refusal = f"refuses: {new.refusal}" if new.refusal else self._contradiction(node, new)
        if refusal is None:
            self.known.facts.update({f.client: f for f in new.facts})
            self.known.homes.update(dict.fromkeys(new.clients, node))
            self._names[node] = new.name
            self.keep(self.roster)
        self._names.setdefault(node, new.name)
        why = refusal and f"{new.name} (node {node}) {refusal}"
        self.statuses[node] = NodeStatus(new.name, new.clients, why, since)
        if why:
            self._say(why)
        if refusal and not new.refusal:  # so that the people there know
            self._transport.send(node, SiteMessage(to_json({"refused": refusal}), []), "query.refused", PATIENCE)

    def _contradiction(self, node: int, new: Introduction) -> str | None:
        """Why this introduction can't be true or does not fit the run; None if it fits."""
        facts = {f.client: f for f in new.facts}
        known = self.known.facts
        if new.version.split(".")[:2] != __version__.split(".")[:2]:
            return f"runs Headwise {make_printable(new.version)}, but the server runs {__version__}"
        if not new.clients or not set(new.clients) <= set(self._clients) or facts.keys() != set(new.clients):
            return "claims clients that the run does not have, or sends no facts about its own"
        for c in new.clients:
            other = self.known.homes.get(c, node)
            if other != node:
                self.clash = (
                    f"client {c} is claimed by {self.name_of(other)} and by {new.name}: each client must have one site"
                )
                return f"claims client {c}, which {self.name_of(other)} has"
        if [c for c, f in facts.items() if known.get(c, f) != f]:
            return "reports other facts about its data than when the run began"
        if problem := next((f.problem for f in facts.values() if f.problem), None):
            return problem
        first = next(iter([*known.values(), *facts.values()]))
        home = self.name_of(self.known.homes.get(first.client, node))
        for f in facts.values():
            if differs := f.difference(first, home):
                self.clash = f"{new.name} {differs}; all sites must describe their data alike"
                return differs
        return None


def _pauses() -> Iterator[float]:
    """Pauses that grow up to a limit."""
    pause = FIRST_PAUSE
    while True:
        yield pause
        pause = min(LAST_PAUSE, pause * GROWTH)
