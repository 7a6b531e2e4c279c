"""What a checkpoint contains."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainer.checkpointing.arrays import mesh_of
from trainer.checkpointing.contents import changes, versions
from trainer.state import TrainState

__all__ = ["Saved"]


@dataclass(frozen=True)
class Saved:
    """A checkpoint as it was saved. `CheckpointManager` fills in versions and mesh.

    productive_seconds: see Goodput. run: that saved it, as segments.jsonl names it. None: unknown."""

    step: int
    state: TrainState
    input_state: dict[str, Any]
    config: dict[str, Any]
    versions: Mapping[str, str] = field(default_factory=dict)
    mesh: Mapping[str, Any] = field(default_factory=dict)
    productive_seconds: float | None = None
    run: str | None = None

    def changes(self, config: Mapping[str, Any]) -> list[str]:
        """A text for each setting, version and device count that differs from when this was saved."""
        now = ((self.config, config), (self.versions, versions()), (self.mesh, mesh_of(self.state)))
        return [text for then, this in now for text in changes(then, this)]
