"""Experiments behind presets and documents, each a script: `python -m offrank.lab.experiments.NAME --help`."""
