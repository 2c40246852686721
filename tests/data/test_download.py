# SPDX-License-Identifier: AGPL-3.0-or-later
"""Truths about fetching: what is not allowed does not come, what comes carries its licence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("datasets", reason="needs the data extra")

from rusty_r2.data.download import KNOWN, DownloadConfig, Entry, Plan, download, entry_of, row_allowed
from rusty_r2.errors import ConfigError, DataError
from rusty_r2.lm.documents import documents


def dataset(folder: Path, licence: str) -> Path:
    folder.mkdir()
    head = f"---\nlicense: {licence}\n---\n" if licence else ""
    (folder / "README.md").write_text(f"{head}# sums\n")
    (folder / "train.jsonl").write_text(
        '{"question": "1+1?", "answer": "2"}\n{"question": "2+2?", "answer": "4"}\n'
    )
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def test_an_allowed_dataset_brings_its_licence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = dataset(tmp_path / "sums", "mit")
    said = download(DownloadConfig((str(source),), tmp_path / "out"))
    assert "next: rusty data corpus --source" in said
    assert "MB  mit" in capsys.readouterr().out
    found = list(documents(tmp_path / "out" / "sums"))
    assert [(one.text, one.licence) for one in found] == [("1+1?\n2", "mit"), ("2+2?\n4", "mit")]
    assert download(DownloadConfig((str(source),), tmp_path / "out")) == said


@pytest.mark.parametrize("licence", ["cc-by-nc-4.0", "cc-by-nd-4.0", "other", ""])
def test_a_licence_not_on_the_list_fetches_nothing(tmp_path: Path, licence: str) -> None:
    source = dataset(tmp_path / "sums", licence)
    with pytest.raises(DataError, match="none of these may be fetched"):
        download(DownloadConfig((str(source),), tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_dry_run_and_a_size_limit_fetch_nothing(tmp_path: Path) -> None:
    source = dataset(tmp_path / "sums", "mit")
    assert "1 of 1 would be" in download(DownloadConfig((str(source),), tmp_path / "out", dry_run=True))
    with pytest.raises(DataError, match="none of these"):
        download(DownloadConfig((str(source),), tmp_path / "out", max_gb=1e-9))
    assert not (tmp_path / "out").exists()


def test_rows_are_judged_where_the_dataset_names_no_licence() -> None:
    assert row_allowed(["MIT", "Apache-2.0"])
    assert not row_allowed(["MIT", "GPL-3.0"])
    assert not row_allowed([])
    stack = Plan(KNOWN["the-stack-smol-xl"], ("other",), 10)
    assert stack.refusal(1.0) == ""
    assert "allow-list" in Plan(Entry("a/b", "b"), ("other",), 10).refusal(1.0)


def test_names() -> None:
    assert set(KNOWN) == {"apps", "wikipedia", "gsm8k", "oasst1", "the-stack-smol-xl"}
    assert entry_of("owner/Name:en") == Entry("owner/Name", "owner_name", "en")
    with pytest.raises(ConfigError, match="is not one of"):
        entry_of("gsm9k")


def test_no_network_is_one_line() -> None:
    command = [sys.executable, "-m", "rusty_r2.cli", "data", "download", "--name", "gsm8k"]
    env = os.environ | {"HF_HUB_OFFLINE": "1"}
    told = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert told.returncode == 1
    assert told.stderr.startswith("rusty data download: openai/gsm8k could not be asked for: ")
    assert told.stderr.count("\n") == 1
