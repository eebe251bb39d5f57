"""The compiled part. Optional: where there is no compiler, episodes of our tasks run in Python, more slowly."""

import sys

from setuptools import Extension, setup

flags = ["/O2", "/fp:precise"] if sys.platform == "win32" else ["-O3", "-std=c99", "-ffp-contract=off"]

setup(
    ext_modules=[
        Extension(
            "offrank.engines.native._rollout",
            ["src/offrank/engines/native/_rollout.c"],
            extra_compile_args=flags,
            export_symbols=["offrank_episode", "offrank_actions", "offrank_layout"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},  # it is called by ctypes: one wheel for every Python
)
