"""The server's view of a deployment's nodes: they connect, say which clients they have, vanish and return."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from ...data.preprocessing.sharing import same_features
from ...disk.jsontext import to_json
from ...errors import ConfigError
from ...settings.experiment import Experiment
from ...settings.fields import build
from ..facts import ClientFacts, Introduction
from ..transport.messages import Lost, SiteMessage

PAUSE = 0.5
"""seconds between polls, each of which is a request to the SuperLink"""
PATIENCE = 300.0
"""seconds to wait for a lost node: after a kill, Flower takes a minute to let it back in"""
LONG = 3600.0
"""seconds until a message expires if no deadline is set"""


class Transport(Protocol):
    """Carries messages; implemented by Flower."""

    def nodes(self) -> set[int]:
        """The nodes that are connected now."""
        ...

    def send(self, node: int, message: SiteMessage, kind: Literal["train", "query"], seconds: float) -> str | None:
        """Send a message that expires after `seconds`; return its number, or None if the node is gone."""
        ...

    def collect(self, numbers: Sequence[str]) -> list[tuple[str, SiteMessage | Lost]]:
        """The replies to these messages that have arrived."""
        ...


class Roster(NamedTuple):
    """What sites have told since the run first started."""

    told: dict[int, ClientFacts]
    homes: dict[int, int]
    """each client's node; no other node may answer for it"""


class NodeStatus(NamedTuple):
    name: str
    clients: tuple[int, ...]
    refusal: str | None
    """why the node can't take part"""


class Nodes:
    """The link to the sites' nodes; a new node is asked who it is, and used from the next exchange on."""

    def __init__(self, post: Transport, experiment: Experiment, known: Roster) -> None:
        self._post, self._clients = post, range(experiment.clients or 0)
        self._question = SiteMessage(to_json({"experiment": to_json(experiment.plain())}), [])
        self.known = known
        self.keep: Callable[[Roster], None] = lambda known: None
        self.heard: dict[int, NodeStatus] = {}
        self._asking: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def node_of(self, client: int) -> int | None:
        return next((n for n, h in self.heard.items() if client in h.clients and h.refusal is None), None)

    def name_of(self, node: int) -> str:
        return self._names.get(node, f"node {node}")

    def wait(self, clients: Sequence[int], seconds: float) -> dict[int, str]:
        """Wait up to `seconds` for these clients' nodes; return why each missing client is missing."""
        until = time.monotonic() + seconds
        while True:
            self.look()
            refused = {c: h.refusal for h in self.heard.values() if h.refusal for c in h.clients}
            missing = [c for c in clients if self.node_of(c) is None]
            if all(c in refused for c in missing) or time.monotonic() > until:
                late = f"no site connected for it within {seconds:g} seconds"
                return {c: refused.get(c, late) for c in missing}
            time.sleep(PAUSE)

    def look(self) -> None:
        """Ask new nodes who they are, and read the answers that have arrived."""
        here = self._post.nodes()
        for node in self.heard.keys() - here:  # its answer may differ when it returns
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
        waiting: dict[str, int] = {}
        for node, message in messages.items():
            if number := self._post.send(node, message, "train", seconds or LONG):
                waiting[number] = node
            else:
                yield node, self._forget(node, Lost(f"node {node} is not connected"))
        while waiting:
            self.look()
            for number, reply in self._post.collect(list(waiting)):
                node = waiting.pop(number)
                yield node, self._forget(node, reply) if isinstance(reply, Lost) else reply
            time.sleep(PAUSE if waiting else 0)

    def renew(self, clients: Sequence[int], patiently: bool) -> None:
        self.wait(clients, PATIENCE if patiently else 0.0)

    def close(self) -> None:
        """Nothing to release: the nodes stay connected."""

    def _forget(self, node: int, lost: Lost) -> Lost:
        """A late node is still connected; any other must introduce itself again."""
        if lost.reason != "late":
            self.heard.pop(node, None)
        return lost

    def _hear(self, node: int, reply: SiteMessage) -> None:
        """Record a node's introduction; a node that contradicts earlier facts is not used."""
        try:
            said = build(Introduction, json.loads(reply.text))
        except (ValueError, TypeError, AttributeError, ConfigError) as error:
            said = Introduction(f"node {node}", (), (), f"its introduction can't be read: {error}")
        refusal = f"refuses: {said.refusal}" if said.refusal else self._contradiction(node, said)
        if refusal is None:
            self.known.told.update({t.client: t for t in said.told})
            self.known.homes.update(dict.fromkeys(said.clients, node))
            self.keep(self.known)
        self._names[node] = said.name
        self.heard[node] = NodeStatus(said.name, said.clients, refusal and f"{said.name} (node {node}) {refusal}")

    def _contradiction(self, node: int, said: Introduction) -> str | None:
        told, known = {t.client: t for t in said.told}, self.known.told
        if not said.clients or not set(said.clients) <= set(self._clients) or told.keys() != set(said.clients):
            return "claims clients that the run does not have, or sends no facts about its own"
        if [c for c in said.clients if self.known.homes.get(c, node) != node]:
            return "claims clients that another site has"
        if [c for c, t in told.items() if known.get(c, t) != t]:
            return "reports other facts about its data than when the run began"
        if problem := next((t.problem for t in told.values() if t.problem), None):
            return problem
        first = next(iter([*known.values(), *told.values()]))
        if any(bool(t.sums) != bool(first.sums) for t in told.values()):
            return "and other sites differ in whether they tell sums of their features: set allow.sums at all of them"
        if first.sums:  # the shape of a sample is known once everybody's are added up
            alike = all(same_features(first.sums, t.sums) and t.classes == first.classes for t in told.values())
            return None if alike else "has other features, preprocessing or classes than other sites"
        task = first.task
        return next(
            (f"has data of the form {t.task}, but other sites have {task}" for t in told.values() if t.task != task),
            None,
        )
