"""What the warp engine runs on."""

from __future__ import annotations

from dataclasses import dataclass

from offrank.core.errors import UsageError


@dataclass(frozen=True)
class Gpu:
    """A device, and how to use it."""

    worlds: int = 2048  # simulations side by side; a step costs about the same for 500 as for 2000
    device: str | None = None  # of Warp, such as cuda:1 or cpu; None for the first GPU
    deterministic: bool = False  # equal bits from run to run, at a cost

    def __post_init__(self) -> None:
        if self.worlds < 1:
            raise UsageError(f"worlds = {self.worlds}: must be at least 1")
