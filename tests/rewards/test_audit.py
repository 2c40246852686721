"""The red team gets nothing: not from the shipped rewards, and the audit sees where a custom one pays it."""

import pytest

from rusty_r2.rewards.audit import AuditConfig, audit, load_rewards, require_audit, run_audit
from rusty_r2.rewards.base import BaseReward, RewardError, RewardResult
from rusty_r2.rewards.engine import RewardEngine, default_rewards
from rusty_r2.rewards.redteam import CHEATS, REQUESTS, honest

NAMED = [
    "empty",
    "canned",
    "early",
    "edited",
    "planted",
    "sleep",
    "number",
    "flattery",
    "padding",
    "JSON",
    "huge",
    "forged",
    "echoing",
]


def test_the_shipped_engine_holds():
    report = run_audit()
    assert report.ok, report.table()
    assert {finding.policy for finding in report.findings if not finding.honest} == {*CHEATS, "silence"}
    assert min(finding.score for finding in report.findings if finding.honest) > 0.9


@pytest.mark.parametrize("word", NAMED)
def test_the_red_team_has_every_kind_of_cheat(word):
    assert any(word in name for name in CHEATS)


def test_honest_traces_are_labelled_good_and_cheats_bad():
    engine = RewardEngine()
    for request in REQUESTS:
        assert engine.get_binary_label(honest(request)), request.kind
        assert not engine.get_binary_label(CHEATS["empty answer"](request)), request.kind


class Long(BaseReward):
    """The longer the better: a reward that asks to be cheated."""

    name = "long"
    weight = 20.0

    def compute(self, trace):
        return RewardResult(min(1.0, len(trace.final_response) / 100), False)


class Breaks(BaseReward):
    name = "breaks"

    def compute(self, trace):
        return RewardResult(1.0 / len(trace.final_response), False)


def test_a_custom_reward_that_pays_cheats_fails():
    with pytest.raises(RewardError, match="break the audit"):
        require_audit(RewardEngine([*default_rewards(), Long()]))


def test_without_the_veto_the_engine_is_cheated():
    assert not run_audit(RewardEngine([Long()], veto=False)).ok


def test_a_custom_reward_that_breaks_is_named():
    with pytest.raises(RewardError, match="breaks raised ZeroDivisionError"):
        run_audit(RewardEngine([Breaks()]))


OWN = """
from rusty_r2.rl import BaseReward, RewardResult
class Polite(BaseReward):
    name = "polite"
    def compute(self, trace):
        return RewardResult(float("please" in trace.final_response), True)
"""


def test_the_command_takes_rewards_by_file_and_by_module(tmp_path, capsys):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    assert [reward.name for reward in load_rewards(str(file))] == ["polite"]
    assert [reward.name for reward in load_rewards(f"{file}:Polite")] == ["polite"]
    assert [reward.name for reward in load_rewards("rusty_r2.rewards.code:SyntaxValidationReward")]
    with pytest.raises(RewardError, match="policies break the audit"):
        audit(AuditConfig(reward=(str(file),), only=True))
    assert "FAILS" in capsys.readouterr().out
    assert "next: " in audit(AuditConfig())


@pytest.mark.parametrize(
    "name", ["nowhere:Class", "rusty_r2.errors:RustyError", "gone.py", "rusty_r2.rewards.code:Gone"]
)
def test_what_is_no_reward_is_refused(name):
    with pytest.raises(RewardError):
        load_rewards(name)


def test_a_file_that_breaks_is_one_line(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text("1 / 0")
    with pytest.raises(RewardError, match="ZeroDivisionError"):
        load_rewards(str(file))
