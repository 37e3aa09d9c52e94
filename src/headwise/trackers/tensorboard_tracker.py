"""TensorBoard: ``tensorboard --logdir runs`` shows all tracked runs."""

from __future__ import annotations

from pathlib import Path

from torch.utils.tensorboard.writer import SummaryWriter

from ..engine.events import Event, RoundEnded, RunEnded, RunStarted, StartMeasured
from . import flatten_row


class TensorBoardTracker:
    """Writes each round's numbers to ``tensorboard/`` in the run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tensorboard"
        self._writer = None

    def __call__(self, event: Event) -> None:
        """Rounds that are run again replace the earlier ones."""
        match event:
            case RunStarted(start=start):
                self._writer = SummaryWriter(str(self.folder), purge_step=start + 1 if start else None)
            case RoundEnded(row) | StartMeasured(row) if self._writer:
                for name, value in flatten_row(row).items():
                    self._writer.add_scalar(name, value, row["round"])
                self._writer.flush()
            case RunEnded() if self._writer:
                self._writer.close()
            case _:
                pass
