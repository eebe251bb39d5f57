"""Frozen normalisers on the device: the episodes of a request share one."""

from __future__ import annotations

from offrank.core.normalizer import Whitening


class Whitenings:
    """Allocates places in the device's table of normalisers. A place is used while an episode needs it."""

    def __init__(self, places: int):
        self._free = list(range(places))
        self._known: dict[int, tuple[Whitening, int, int]] = {}  # by id: (normaliser, place, number of episodes)
        self._user: dict[int, int] = {}  # row of an episode: id of its normaliser

    def place(self, rows: list[int], whitenings: list[Whitening]) -> tuple[list[int], list[tuple[int, Whitening]]]:
        """The place of each episode's normaliser, and the (place, normaliser) pairs that are new to the table."""
        places, fresh = [], []
        for row, whitening in zip(rows, whitenings, strict=True):
            key = id(whitening)
            if key not in self._known:
                self._known[key] = (whitening, self._free.pop(), 0)
                fresh.append((self._known[key][1], whitening))
            _, place, users = self._known[key]
            self._known[key] = (whitening, place, users + 1)
            self._user[row] = key
            places.append(place)
        return places, fresh

    def release(self, row: int) -> None:
        key = self._user.pop(row)
        whitening, place, users = self._known[key]
        if users > 1:
            self._known[key] = (whitening, place, users - 1)
        else:
            del self._known[key]
            self._free.append(place)
