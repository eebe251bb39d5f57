"""Settings of the warp engine."""

from __future__ import annotations

from dataclasses import dataclass

from offrank.core.errors import UsageError


@dataclass(frozen=True)
class Gpu:
    """A device and how to use it."""

    worlds: int = 2048  # parallel simulations; a step takes about as long for 500 as for 2000
    device: str | None = None  # Warp's name of the device, such as cuda:1 or cpu; None for the first GPU
    deterministic: bool = False  # the same bits in every run; slower

    def __post_init__(self) -> None:
        if self.worlds < 1:
            raise UsageError(f"worlds = {self.worlds}: must be at least 1")
