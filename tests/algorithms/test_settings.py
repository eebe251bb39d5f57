"""The smallest and the largest value of every setting are accepted, and the next one beyond is named and refused."""

from __future__ import annotations

from typing import Any

import pytest

from offrank.algorithms.cem_rl import CEMRLSettings, CEMSettings, OPCEMRLSettings
from offrank.algorithms.distilled import DistilledSettings
from offrank.algorithms.faded import FadedSettings
from offrank.algorithms.guided import GuidedSettings
from offrank.algorithms.rankers import Critic
from offrank.algorithms.rankers.interleaved import Adaptive, Interleaved
from offrank.algorithms.rankers.kernel import Kernel
from offrank.algorithms.rankers.members import KernelOfMembers, Race, Value
from offrank.algorithms.strategies import ARS, ES
from offrank.core.errors import UsageError

TINY = 1e-9
AT_LEAST_1: dict[type, str] = {
    Critic: "networks hidden n_steps replay",
    Interleaved: "period n_behaviour",
    Adaptive: "patience n_behaviour",
    Kernel: "n_behaviour",
    KernelOfMembers: "n_behaviour",
    Race: "race_steps",
    Value: "start_steps",
    CEMRLSettings: "hidden batch replay gradient_members elites",
    GuidedSettings: "hidden batch replay n_steps population warmup_steps",
    DistilledSettings: "copy_rounds copy_episodes n_top",
    ARS: "n_top",
}
NOT_NEGATIVE: dict[type, str] = {
    CEMSettings: "start_variance extra_variance least_variance",
    CEMRLSettings: "target_noise target_noise_clip",
    GuidedSettings: "step_noise reward_unit",
    ES: "weight_decay",
}
POSITIVE: dict[type, str] = {
    Critic: "passes critic_rate",
    CEMRLSettings: "critic_rate actor_rate",
    GuidedSettings: "critic_rate actor_rate ratio action_change",
}
FROM_0_TO_1: dict[type, str] = {Critic: "explore", CEMSettings: "variance_decay", CEMRLSettings: "discount slow"}
BELOW_1: dict[type, str] = {
    Critic: "discount trust_decay",
    Adaptive: "memory_decay",
    ARS: "momentum",
    ES: "beta1 beta2",
}


def each(table: dict[type, str], last: Any, beyond: Any) -> list[tuple[type, str, Any, Any]]:
    return [(of, name, last, beyond) for of, names in table.items() for name in names.split()]


LIMITS = [
    *each(AT_LEAST_1, 1, 0),
    *each(NOT_NEGATIVE, 0.0, -TINY),
    *each(POSITIVE, TINY, 0.0),
    *each(FROM_0_TO_1, 0.0, -TINY),
    *each(FROM_0_TO_1, 1.0, 1 + TINY),
    *each(BELOW_1, 0.0, -TINY),
    *each(BELOW_1, 1 - TINY, 1.0),
    (Critic, "warmup", 0, -1),
    (Critic, "trust_needed", -1.0, -1 - TINY),
    (Critic, "trust_needed", 1.0, 1 + TINY),
    (CEMSettings, "population", 5, 4),  # of which 5 are the elites
    (CEMSettings, "elites", 10, 11),
    (CEMRLSettings, "gradient_members", 10, 11),
    (CEMRLSettings, "warmup_steps", 0, -1),
    (OPCEMRLSettings, "candidates", 5, 4),
    (OPCEMRLSettings, "gradient_members", 20, 21),
    (GuidedSettings, "candidates", 2, 1),
    (DistilledSettings, "teacher_steps", 0, -1),
    (FadedSettings, "fade_from", 0, -1),
    (FadedSettings, "fade_from", 209_999, 210_000),  # it must be gone after 210,000
    (ARS, "n_directions", 10_000_000, 10_000_001),
]


@pytest.mark.parametrize(("of", "name", "last", "beyond"), LIMITS)
def test_a_setting_has_its_limits(of: type, name: str, last: Any, beyond: Any) -> None:
    assert getattr(of(**{name: last}), name) == last
    with pytest.raises(UsageError, match=name):
        of(**{name: beyond})


@pytest.mark.parametrize("form", ["BRS", "V1", "V2"])
def test_forms_without_a_t_use_every_direction(form: str) -> None:
    assert ARS(n_directions=6, n_top=6, form=form).form == form
    with pytest.raises(UsageError, match=rf"form {form} uses every direction.*or use the form V\d-t"):
        ARS(n_directions=6, n_top=5, form=form)
