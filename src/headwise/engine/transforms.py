"""What happens to a message where it leaves a client: it is clipped, and noise is added to it.

Whatever a client's data are, clipped messages differ by at most twice the clip: that is the sensitivity of one message.
Everything else about it must not depend on the data: class means are sent for all classes, those that the client does
not hold as zeros under the same noise.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ..averaging import Shared
from ..benches import ClassMeans
from ..errors import AccountingError
from ..params import Params
from ..records import Nothing, Record, fields_of
from .options import Privacy
from .randomness import gaussian, source_of


def leaving(privacy: Privacy, seed: int, client: int, t: int, down: Record, up: Record, classes: int) -> Record:
    """The message as the server gets it."""
    if privacy.clip is None or privacy.per_example:  # then training itself was private
        return up
    rng = source_of(privacy, seed, client, t)
    if isinstance(up, Shared) and isinstance(down, Shared) and _layout(up) == _layout(down):
        return Shared(down.w + _protected(up.w - down.w, privacy.clip, privacy.noise, rng))
    if isinstance(up, Nothing):
        return up
    if isinstance(up, ClassMeans):
        return _all_classes(up, classes, privacy.clip, privacy.noise, rng)
    raise AccountingError(f"what it sends ({', '.join(fields_of(type(up)))}) has no known sensitivity")


def _layout(shared: Shared) -> dict[str, torch.Size]:
    return {name: t.shape for name, t in shared.w.items()}


def _all_classes(up: ClassMeans, classes: int, clip: float, noise: float, rng: torch.Generator | None) -> ClassMeans:
    """The means of all classes, protected as one vector: which of them the client holds is not told."""
    rest = [name for name in fields_of(type(up)) if name not in ("labels", "means") and getattr(up, name) is not None]
    if rest:
        raise AccountingError(f"it sends {', '.join(rest)} beside class means, which can't be protected")
    held = up.labels >= 0
    means = up.means.new_zeros(classes, up.means.shape[1]).index_copy(0, up.labels[held].long(), up.means[held])
    noisy = _protected(Params(means=means), clip, noise, rng)["means"]
    return dataclasses.replace(up, labels=torch.arange(classes, dtype=torch.int32), means=noisy)


def _protected(value: Params, clip: float, noise: float, rng: torch.Generator | None) -> Params:
    """Shrunk to the norm of the clip where it is longer, and with noise on every number."""
    norm = float(value.map(Tensor.double).sq_norm().sqrt())
    shrink = min(1.0, clip / norm) if norm > 0 else 1.0
    if not norm < float("inf"):  # a model that diverged tells that it did: nothing may leave in its place
        value, shrink = value.zeros(), 1.0
    scale = noise * 2 * clip
    return value.map(lambda d: d * shrink + (scale * gaussian(d.shape, rng)).to(d.dtype))
