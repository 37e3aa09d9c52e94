"""SlowHead — an example, 2026: a shared body with a personal head that changes slowly.

    python examples/slow_head.py              trains it
    headwise check examples/slow_head.py      checks that it meets the contract

A method is a class in a file of the same name. `headwise new method mymethod` starts one for you.
"""

from __future__ import annotations

from dataclasses import dataclass

import headwise as hw
from headwise.authoring import Averaging, Central, Local, OwnHead, Params, Shared, Unit, Update


@dataclass(frozen=True)
class SlowHead(Averaging[OwnHead]):
    """A shared body with a personal head, of which a part is kept in each round."""

    family = "shared body"
    travels = "body"
    stays = "head"
    traffic_down = "F"

    keep: Unit = 0.5
    """how much of the old head is kept"""

    def shared(self, central: Central) -> Params:
        return central.init().params("body")

    def local_update(self, me: OwnHead, down: Shared, local: Local) -> Update[Shared, OwnHead]:
        m = local.model(down.w | me.h)
        local.sgd(m)
        h = self.keep * me.h + (1 - self.keep) * m.state("head")
        return Update(Shared(m.params("body")), OwnHead(h), m)


if __name__ == "__main__":
    settings = {"data": "synthetic:400", "clients": 8, "rounds": 5, "train": {"lr": 0.1}, "engine": {"workers": 1}}
    for keep in (0.0, 0.5, 0.9):
        run = hw.run(hw.Experiment(method=SlowHead(keep=keep), **settings))
        print(f"keep {keep}: {run.accuracy():.1%} right, {run.rounds[-1]['bytes_up']:,} bytes up per round")
