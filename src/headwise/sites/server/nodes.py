"""The nodes of a deployment as its server sees them: they come, say which clients they have, vanish and come back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from ...disk.jsontext import to_json
from ...errors import ConfigError
from ...settings.experiment import Experiment
from ...settings.fields import build
from ..facts import ClientFacts, Introduction
from ..transport.messages import Lost, SiteMessage

PAUSE = 0.5
"""seconds between two looks: each is a request to a SuperLink"""
PATIENCE = 300.0
"""seconds for which a node that was lost is waited for: one that was killed is let in again after a minute"""
LONG = 3600.0
"""seconds after which a message is given up where no deadline is set"""


class Transport(Protocol):
    """What carries messages: Flower."""

    def nodes(self) -> set[int]:
        """Those that are there now."""
        ...

    def send(self, node: int, message: SiteMessage, kind: Literal["train", "query"], seconds: float) -> str | None:
        """Send a message that is good for so long; its number, or none if the node is not there."""
        ...

    def collect(self, numbers: Sequence[str]) -> list[tuple[str, SiteMessage | Lost]]:
        """The replies to these messages that have come."""
        ...


class Roster(NamedTuple):
    """What sites have told since the run began, also in sessions before."""

    told: dict[int, ClientFacts]
    """about their clients"""
    homes: dict[int, int]
    """each client's node: no other may speak for it"""


class NodeStatus(NamedTuple):
    """What a node told about itself."""

    name: str
    clients: tuple[int, ...]
    refusal: str | None
    """why it won't take part"""


class Nodes:
    """The way to the sites' nodes; a node that comes is asked who it is, and used from the next exchange on."""

    def __init__(self, post: Transport, experiment: Experiment, known: Roster) -> None:
        self._post, self._clients = post, range(experiment.clients or 0)
        self._question = SiteMessage(to_json({"experiment": to_json(experiment.plain())}), [])
        self.known = known
        self.keep: Callable[[Roster], None] = lambda known: None
        """stores it"""
        self.heard: dict[int, NodeStatus] = {}
        self._asking: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def node_of(self, client: int) -> int | None:
        """The node that said so."""
        return next((n for n, h in self.heard.items() if client in h.clients and h.refusal is None), None)

    def name_of(self, node: int) -> str:
        """As the node calls itself, or did."""
        return self._names.get(node, f"node {node}")

    def wait(self, clients: Sequence[int], seconds: float) -> dict[int, str]:
        """Until these clients' nodes have said who they are, but so long at most; why each of the others is missing."""
        until = time.monotonic() + seconds
        while True:
            self.look()
            refused = {c: h.refusal for h in self.heard.values() if h.refusal for c in h.clients}
            missing = [c for c in clients if self.node_of(c) is None]
            if all(c in refused for c in missing) or time.monotonic() > until:
                late = f"no site has come for it within {seconds:g} seconds"
                return {c: refused.get(c, late) for c in missing}
            time.sleep(PAUSE)

    def look(self) -> None:
        """Ask nodes that are new who they are, and hear those that have said so."""
        here = self._post.nodes()
        for node in self.heard.keys() - here:  # when it comes back it may have changed its mind
            del self.heard[node]
        for node in here - self.heard.keys() - set(self._asking.values()):
            if number := self._post.send(node, self._question, "query", PATIENCE):
                self._asking[number] = node
        for number, reply in self._post.collect(list(self._asking)) if self._asking else ():
            node = self._asking.pop(number)
            if isinstance(reply, SiteMessage):
                self._hear(node, reply)

    def exchange(
        self, messages: Mapping[int, SiteMessage], seconds: float | None
    ) -> Iterator[tuple[int, SiteMessage | Lost]]:
        """Send each node its message; the replies in the order in which they come."""
        waiting: dict[str, int] = {}
        for node, message in messages.items():
            if number := self._post.send(node, message, "train", seconds or LONG):
                waiting[number] = node
            else:
                yield node, self._forget(node, Lost(f"node {node} is not there"))
        while waiting:
            self.look()
            for number, reply in self._post.collect(list(waiting)):
                node = waiting.pop(number)
                yield node, self._forget(node, reply) if isinstance(reply, Lost) else reply
            time.sleep(PAUSE if waiting else 0)

    def renew(self, clients: Sequence[int], patiently: bool) -> None:
        """Wait for those that were lost."""
        self.wait(clients, PATIENCE if patiently else 0.0)

    def close(self) -> None:
        """Nothing to give back: the nodes stay."""

    def _forget(self, node: int, lost: Lost) -> Lost:
        """One that is late is still there; any other has to say again who it is."""
        if lost.reason != "late":
            self.heard.pop(node, None)
        return lost

    def _hear(self, node: int, reply: SiteMessage) -> None:
        """Take down what a node says; one that contradicts what was said before is not used."""
        try:
            said = build(Introduction, json.loads(reply.text))
        except (ValueError, TypeError, AttributeError, ConfigError) as error:
            said = Introduction(f"node {node}", (), (), f"it speaks another language: {error}")
        refusal = f"refuses: {said.refusal}" if said.refusal else self._contradiction(node, said)
        if refusal is None:
            self.known.told.update({t.client: t for t in said.told})
            self.known.homes.update(dict.fromkeys(said.clients, node))
            self.keep(self.known)
        self._names[node] = said.name
        self.heard[node] = NodeStatus(said.name, said.clients, refusal and f"{said.name} (node {node}) {refusal}")

    def _contradiction(self, node: int, said: Introduction) -> str | None:
        """Why a node can't be what it says."""
        told, known = {t.client: t for t in said.told}, self.known.told
        if not said.clients or not set(said.clients) <= set(self._clients) or told.keys() != set(said.clients):
            return "has clients that the run does not have, or tells nothing about its own"
        if [c for c in said.clients if self.known.homes.get(c, node) != node]:
            return "says that it has clients which another site has"
        if [c for c, t in told.items() if known.get(c, t) != t]:
            return "tells other facts about its data than when the run began"
        if problem := next((t.problem for t in told.values() if t.problem), None):
            return problem
        task = next(iter([*known.values(), *told.values()])).task
        return next(
            (f"has data of the form {t.task}, but others have {task}" for t in told.values() if t.task != task), None
        )
