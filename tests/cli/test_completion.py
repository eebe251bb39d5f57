from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from offrank.algorithms import ALGORITHMS
from offrank.algorithms.rankers import RANKERS
from offrank.cli import VERBS
from offrank.tasks import NATIVE

PRESS_TAB = """
source completion
shift_to() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COMPREPLY=(); }
shift_to "$@"
function=$(complete -p offrank | sed 's/.*-F \\([^ ]*\\).*/\\1/')
"$function" offrank "${@: -1}" "${@: -2:1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def completed(offrank, tmp_path):
    """The completions that bash offers for the last of some words."""
    bash = shutil.which("bash")
    if bash is None or sys.platform == "win32":
        pytest.skip("there is no bash")
    (tmp_path / "completion").write_text(offrank("completion", "bash").out)

    def press_tab(*words: str) -> set[str]:
        command = [bash, "--norc", "-c", PRESS_TAB, "bash", "offrank", *words]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert ended.stderr == ""
        return set(ended.stdout.split())

    return press_tab


def test_bash_completes_verbs_flags_tasks_algorithms_and_rankers(completed) -> None:
    assert completed("") >= set(VERBS)
    assert completed("tr") == {"train"}
    assert completed("train", "") >= set(NATIVE)
    assert completed("train", "Half") == {"HalfCheetah-v3"}
    assert completed("train", "Hopper-v3", "--eval-") == {"--eval-every", "--eval-steps", "--eval-episodes"}
    assert completed("train", "Hopper-v3", "--algo", "") >= set(ALGORITHMS)
    assert completed("train", "--algo", "ars", "Hop") == {"Hopper-v3"}
    assert completed("train", "Hopper-v3", "--ranker", "") >= set(RANKERS)
    assert completed("train", "Hopper-v3", "--ranker", "inter") == {"interleaved"}
    assert completed("list", "settings", "gui") == {"guided"}
    assert completed("list", "settings", "guided", "--task", "Wal") == {"Walker2d-v3"}
    assert completed("reproduce", "table1", "--tasks", "Swim") == {"Swimmer-v3"}
    assert completed("evaluate", "comp") == {"completion"}, "the file in this folder"


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_with_the_same_names(offrank, shell: str) -> None:
    script = offrank("completion", shell)
    assert script.status == 0
    for name in (*VERBS, *NATIVE, *ALGORITHMS, *RANKERS, "checkpoint-seconds"):
        assert name in script.out
    if path := shutil.which(shell):
        subprocess.run([path, "-n", "/dev/stdin"], input=script.out, text=True, check=True)


def test_an_unknown_shell_gets_one_clear_line(offrank) -> None:
    offrank("completion", "tcsh").complains("'tcsh'", "bash", "zsh", "fish")
