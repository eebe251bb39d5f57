"""offrank reproduce"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from offrank.algorithms.learning.device import check_lessons
from offrank.cli import cluster, gpu, processes
from offrank.cli.listing import our_task
from offrank.cli.options import Parser, count, natural, seeds
from offrank.core.errors import Interrupted, OffrankError, UsageError, did_you_mean
from offrank.core.files import write_atomically
from offrank.display.plots import run_folders
from offrank.display.progress import clock, growing_display
from offrank.engines import ENGINES
from offrank.lab.studies.catalogue import STUDIES, Study, StudyOptions
from offrank.lab.studies.execution import ExecutionSettings, Progress, carry_out, estimate, missing
from offrank.lab.studies.outcomes import Row, cut, distinct, never_evaluated, read_rows, write_rows
from offrank.lab.studies.plan import Planned
from offrank.runs.opening import make_folder

EPILOG = """\
examples:
  offrank reproduce table1 --dry-run                     list the runs, and a bound of the time they take
  offrank reproduce table1 --tasks Swimmer-v3,Hopper-v3 --seeds 0-7
  offrank reproduce boxplots --tasks Swimmer-v3          uses the same runs: nothing is run twice
  offrank reproduce seeds --engine warp                  100 seeds side by side on a GPU
  offrank reproduce table1 --engine ray --address auto   on a cluster
  offrank reproduce guided --engine mujoco --lessons cuda --processes 8
  offrank reproduce lqr
  offrank reproduce table1 --from results/table1.json    table and figures from stored rows, without running
  offrank reproduce seeds --from DIR --budget 1M         as if every budget had been 1M

It may be interrupted, started again with more seeds, or started by several processes on one folder: only missing runs
are started. See docs/paper/reproduction.md for the files.
"""
AGAIN = "the same command continues from here"


def add_parser(verbs: Any) -> None:
    parser: Parser = verbs.add_parser(
        "reproduce",
        help="the paper's tables and figures",
        description="Run a study of the paper, and make its table and figures.\n\n"
        + "\n".join(f"  {study.name:12} {study.help}" for study in STUDIES.values()),
        epilog=EPILOG,
    )
    parser.add_argument("study", metavar="STUDY", help=f"one of {', '.join(STUDIES)}")
    what = parser.add_argument_group("what")
    what.add_argument("--tasks", metavar="A,B", help="default: those of the study")
    what.add_argument("--algos", metavar="A,B", help="ars means both baselines; op-ars/smallest-change names a ranker")
    what.add_argument("--seeds", type=seeds, metavar="0-7", help="default: as many as the paper")
    what.add_argument(
        "--budget",
        type=count,
        help="steps per run (default: about twice the paper's ARS median); with --from: cut longer runs there",
    )
    how = parser.add_argument_group("how")
    how.add_argument("--engine", choices=ENGINES, help="default: that of each task")
    how.add_argument("--threads", type=natural, default=0, help="of the mujoco engine (0: all CPUs)")
    how.add_argument("--workers", type=natural, help="processes of the gymnasium engine (default: one per CPU)")
    how.add_argument("--lessons", metavar="cpu|cuda", help="where critics are trained (default: where the engine is)")
    how.add_argument("--side-by-side", type=count, metavar="K", help="runs at a time (default: what suits the engine)")
    processes.add_flag(how)
    how.add_argument("--out", type=Path, default=Path("runs/reproduce"), metavar="DIR", help="default runs/reproduce")
    how.add_argument(
        "--from", dest="source", type=Path, nargs="+", metavar="PATH", help="run nothing: read rows or run folders"
    )
    how.add_argument("--unfinished", action="store_true", help="with --from: also read unfinished runs")
    how.add_argument("--dry-run", action="store_true", help="list the runs and an upper bound of their time")
    how.add_argument("--json", action="store_true", help="print rows as JSON instead of Markdown")
    how.add_argument("--quiet", action="store_true", help="no progress")
    gpu.add_flags(parser)
    cluster.add_flags(parser)
    parser.set_defaults(run=reproduce)


def reproduce(args: argparse.Namespace) -> int:
    if args.study not in STUDIES:
        raise UsageError(
            f"unknown study {args.study!r}: one of {', '.join(STUDIES)}{did_you_mean(args.study, STUDIES)}"
        )
    study = STUDIES[args.study]
    options = StudyOptions(
        tasks=None if args.tasks is None else tuple(dict.fromkeys(our_task(word) for word in args.tasks.split(","))),
        algos=None if args.algos is None else tuple(dict.fromkeys(args.algos.split(","))),
        seeds=None if args.seeds is None else tuple(args.seeds),
        budget=args.budget,
    )
    if args.unfinished and not args.source:
        raise UsageError("--unfinished needs --from: without it, a study shows finished runs and lists the others")
    if args.source:
        for flag, given in (("--dry-run", args.dry_run), ("--processes", args.processes)):
            if given:
                raise UsageError(f"--from runs nothing: it cannot be combined with {flag}")
        return _present_stored(study, options, args)
    check_lessons(args.lessons)
    plan = study.plan(options)
    settings = ExecutionSettings(
        pool=args.out / study.pool,
        engine=args.engine,
        threads=args.threads,
        workers=args.workers,
        side_by_side=args.side_by_side,
        timed=study.timed,
        gpu=gpu.gpu_of(args, args.engine or "auto"),
        lessons=args.lessons,
        cluster=cluster.cluster_of(args),
    )
    for flag, given in (("--processes", args.processes), ("--side-by-side", args.side_by_side)):
        if study.timed and (given or 1) > 1:
            raise UsageError(f"{flag} does not go with {study.name}, which times runs one at a time")
    if args.dry_run:
        return _print_estimate(plan, settings, args)
    one_of_several = processes.end_if_abandoned()
    todo = missing(plan, settings.pool)
    shared = min(args.processes or 1, len(todo))
    failure: OffrankError | None = None
    status, progress = 0, Progress()
    try:
        if shared > 1:
            status = _carry_out_in_processes(todo, shared, settings, args)
        else:
            progress = _carry_out(plan, settings, args)
    except Interrupted as error:
        print(f"offrank: {error}; saved, {AGAIN}", file=sys.stderr)
        return 128 + error.signum
    except UsageError:
        raise
    except OffrankError as error:  # the other runs still make a table
        failure = error
    if one_of_several or status > 128:
        return _ended(status, failure)
    lacking = missing(plan, settings.pool)
    rows = [_as_planned(study.gather(settings.pool / run.name), run, study, args) for run in plan if run not in lacking]
    if study.other_methods is not None and rows:
        rows += study.other_methods(sorted({run.seed for run in plan}), max(run.steps for run in plan))
    for run in progress.skipped:
        print(f"offrank: {run.name} is being run by another process", file=sys.stderr)
    shown = _present(study, rows, args, lacking)
    return _ended(status or shown, failure)


def _ended(status: int, failure: OffrankError | None) -> int:
    if failure is not None:
        raise failure
    return status


def _carry_out(plan: list[Planned], settings: ExecutionSettings, args: argparse.Namespace) -> Progress:
    display = growing_display(sys.stderr, enabled=not args.quiet)
    try:
        return carry_out(plan, settings, display)
    finally:
        display.close()


def _carry_out_in_processes(
    todo: list[Planned], shared: int, settings: ExecutionSettings, args: argparse.Namespace
) -> int:
    """The same command in several processes, which take runs from each other's list by locks. What they print on
    stdout is nothing."""
    flags = processes.flags_of_share(args, todo[0].task, shared)
    if args.side_by_side is None:  # so that the first does not take all runs of a task
        most = max(Counter(run.task for run in todo).values())
        flags += ["--side-by-side", str(-(-most // shared))]
    watch = processes.Progress([settings.pool / run.name for run in todo], args.quiet)
    return processes.run_offrank([[*args.words, *flags]] * shared, watch, AGAIN)[0]


def _as_planned(row: Row, run: Planned, study: Study, args: argparse.Namespace) -> Row:
    """The row of a finished run, cut at --budget: the run in the folder may have had more steps.

    Raises:
        UsageError: it was run on another engine than the one of --engine.
    """
    if args.engine not in (None, "auto", "ray", row["engine"]):
        raise UsageError(f"{run.name} in {args.out} was run on {row['engine']}, not {args.engine}: give another --out")
    longer = args.budget is not None and (row.get("budget") or 0) > args.budget
    return cut(row, args.budget) if longer and study.can_be_cut else row


def _present_stored(study: Study, options: StudyOptions, args: argparse.Namespace) -> int:
    """Make table and figures from stored rows (--from)."""
    if not study.can_be_cut and (options.budget is not None or args.unfinished):
        flag = "--budget" if options.budget is not None else "--unfinished"
        raise UsageError(f"--from with {flag} does not work with {study.name}: its rows describe whole runs only")
    found = read_rows(args.source, args.unfinished, study.gather)
    rows = distinct(found)
    if not rows:
        unfinished = 0 if args.unfinished else sum(path.is_dir() and len(run_folders([path])) for path in args.source)
        also = f"; {unfinished} are unfinished, add --unfinished to read them" if unfinished else ""
        raise UsageError(f"no finished run in {' '.join(map(str, args.source))}{also}")
    if len(rows) < len(found):
        print(
            f"offrank: {len(found) - len(rows)} rows repeat a run of another row: each run counts once",
            file=sys.stderr,
        )
    chosen = _chosen(options, rows)
    study.check(chosen, parts=options.budget is not None)
    if options.budget is not None:
        chosen = [cut(row, options.budget) for row in chosen]
    target = (args.out / f"{study.name}.json").resolve()
    if chosen != rows and target in {path.resolve() for path in args.source}:
        raise UsageError(f"{target} would be overwritten by a part of itself: give another --out")
    return _present(study, chosen, args, [])


def _chosen(options: StudyOptions, rows: list[Row]) -> list[Row]:
    """The rows that were asked for."""
    for flag, key, asked in (
        ("--tasks", "task", options.tasks),
        ("--seeds", "seed", options.seeds),
        ("--algos", "algo", options.algos),
    ):
        if asked is None:
            continue
        held = {name for row in rows for name in _names(row, key)}
        absent = [name for name in asked if name not in held]
        if absent and key != "seed":
            there = ", ".join(sorted({row[key] for row in rows}))
            raise UsageError(f"{flag} {absent[0]}: no row has it; there are {there}")
        if len(absent) == len(asked):
            raise UsageError(f"{flag}: no row has any of these seeds")
        rows = [row for row in rows if not set(asked).isdisjoint(_names(row, key))]
    return rows


def _names(row: Row, key: str) -> tuple[str | int, ...]:
    """The names that select a row by task, seed or algorithm; an algorithm also with its ranker."""
    return (row["algo"], f"{row['algo']}/{row['ranker']}") if key == "algo" else (row[key],)


def _present(study: Study, rows: list[Row], args: argparse.Namespace, lacking: list[Planned]) -> int:
    """Write rows, summary, Markdown and figures, and print the table."""
    if not rows:
        print(f"offrank: none of the {len(lacking)} runs is finished yet", file=sys.stderr)
        return 0
    if all(map(never_evaluated, rows)):
        print(f"offrank: none of the {len(rows)} runs was evaluated: there is nothing to show", file=sys.stderr)
        return 2
    stem = args.out / study.name
    make_folder(args.out)
    text = study.present(rows, stem)
    if lacking:
        text += f"\n\nUnfinished: {len(lacking)} of {len(lacking) + len(rows)} runs: "
        text += ", ".join(run.name for run in lacking[:20]) + (", ..." if len(lacking) > 20 else "")
    write_rows(stem.with_name(f"{stem.name}.json"), rows)
    write_atomically(stem.with_name(f"{stem.name}.md"), (text + "\n").encode())
    print(json.dumps(rows, indent=1) if args.json else text)
    print(f"{stem}.* written", file=sys.stderr)
    return 0


def _print_estimate(plan: list[Planned], settings: ExecutionSettings, args: argparse.Namespace) -> int:
    rows = estimate(plan, settings)
    total, left = sum(seconds for *_, seconds in rows), sum(not finished for *_, finished, _ in rows)
    if args.json:
        entries = [
            {"run": run.name, "steps": run.steps, "done": done, "finished": finished, "seconds_at_most": round(s, 1)}
            for run, done, finished, s in rows
        ]
        print(json.dumps({"runs": entries, "seconds_at_most": round(total, 1)}, indent=1))
        return 0
    for run, done, finished, seconds in rows:
        state = "finished" if finished else f"{done:,} of {run.steps:,} steps, at most {clock(seconds)}"
        print(f"{run.name:48} {state}")
    print(
        f"{left} of {len(rows)} runs to do, at most {clock(total)} on this machine; less where a threshold is reached"
    )
    return 0
