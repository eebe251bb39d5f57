"""offrank: evolution strategies that rank their candidates off-policy."""

import offrank.headless  # noqa: F401 (before MuJoCo)
from offrank.agents import ARS, ES, OPARS, OPES, OPTRES, QARS, QES, QTRES, TRES, load
from offrank.asktell import AskTell, EpisodeToRun
from offrank.engines import Cluster, Gpu
from offrank.errors import EngineError, EpisodeError, FileFormatError, Interrupted, OffrankError, UsageError
from offrank.grid import Fleet
from offrank.tasks.environment import register as _register

__version__ = "0.1.0"

_register()

__all__ = [
    "ARS",
    "ES",
    "OPARS",
    "OPES",
    "OPTRES",
    "QARS",
    "QES",
    "QTRES",
    "TRES",
    "AskTell",
    "Cluster",
    "EngineError",
    "EpisodeError",
    "EpisodeToRun",
    "FileFormatError",
    "Fleet",
    "Gpu",
    "Interrupted",
    "OffrankError",
    "UsageError",
    "load",
]
