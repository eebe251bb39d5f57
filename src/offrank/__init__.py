"""offrank: evolution strategies that rank their candidates off-policy."""

import offrank.display.headless  # noqa: F401 (before MuJoCo)
from offrank import callbacks
from offrank.agents import (
    ARS,
    CEM,
    CEMRL,
    ES,
    OPARS,
    OPCEMRL,
    OPES,
    OPTRES,
    QARS,
    QTRES,
    TRES,
    Distilled,
    Faded,
    Guided,
    export,
    load,
)
from offrank.asktell import AskTell, EpisodeToRun
from offrank.core.errors import (
    EngineError,
    EpisodeError,
    FileFormatError,
    FleetError,
    Interrupted,
    OffrankError,
    UsageError,
)
from offrank.core.version import VERSION as __version__
from offrank.engines import Cluster, Gpu
from offrank.fleet import Fleet
from offrank.tasks.environment import register as _register

_register()

__all__ = [
    "ARS",
    "CEM",
    "CEMRL",
    "ES",
    "OPARS",
    "OPCEMRL",
    "OPES",
    "OPTRES",
    "QARS",
    "QTRES",
    "TRES",
    "AskTell",
    "Cluster",
    "Distilled",
    "EngineError",
    "EpisodeError",
    "EpisodeToRun",
    "Faded",
    "FileFormatError",
    "Fleet",
    "FleetError",
    "Gpu",
    "Guided",
    "Interrupted",
    "OffrankError",
    "UsageError",
    "__version__",
    "callbacks",
    "export",
    "load",
]
