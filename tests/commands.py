"""What a command line did, for the tests of commands."""

from __future__ import annotations

import json
import os
import re


class Outcome:
    """What a command did: its exit status and what it printed. A warning counts as a line on stderr."""

    def __init__(self, status: int, out: str, err: str):
        self.status, self.out, self.err = status, out, err.replace(os.sep, "/")

    @property
    def json(self):
        return json.loads(self.out)

    def complains(self, *parts: str, status: int = 2) -> None:
        """One line on stderr with all of the parts, nothing on stdout."""
        assert self.status == status, self.err
        assert re.fullmatch(r"offrank: [^\n]+\n", self.err), self.err
        assert self.out == ""
        for part in parts:
            assert part in self.err
