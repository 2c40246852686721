# SPDX-License-Identifier: AGPL-3.0-or-later
"""Fetch datasets by name: licence checked, size shown, and only then anything is fetched.

    rusty data download --dry-run                        what would come, how large, under which licence
    rusty data download --name gsm8k oasst1              fetch two into datasets/
    rusty data download --name OWNER/NAME:CONFIG         any other dataset of the Hugging Face hub

A dataset whose licence is not on the allow-list is passed over and the reason is told; "no commercial
use", "no derivatives", "research only" and "other" are not on it. A dataset that names a licence in each
row (the-stack-smol-xl) keeps only the rows whose licences are all allowed. Each lands as a `save_to_disk`
folder that `rusty data corpus` and `rusty lm tokenizer` read, with its licence beside it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rusty_r2.config import home
from rusty_r2.errors import ConfigError, DataError, need

_SOFTWARE = "mit apache-2.0 bsd-2-clause bsd-3-clause isc unlicense 0bsd zlib psf-2.0 bsl-1.0 mpl-2.0"
_TEXT = "cc0-1.0 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 gfdl odc-by pddl public-domain"
ALLOWED = frozenset(f"{_SOFTWARE} {_TEXT}".split())


@dataclass(frozen=True)
class Entry:
    """One dataset we know by a short name."""

    repository: str
    folder: str
    config: str | None = None
    revision: str | None = None
    row_licences: str = ""
    """field of a row that lists its licences, where the dataset as a whole names none"""


KNOWN = {
    "apps": Entry("codeparrot/apps", "apps", revision="refs/convert/parquet"),
    "wikipedia": Entry("wikimedia/wikipedia", "wikipedia_en_20231101", "20231101.en"),
    "gsm8k": Entry("openai/gsm8k", "gsm8k_openai", "main"),
    "oasst1": Entry("OpenAssistant/oasst1", "oasst1"),
    "the-stack-smol-xl": Entry(
        "bigcode/the-stack-smol-xl", "the_stack_smol_xl", row_licences="max_stars_repo_licenses"
    ),
}


@dataclass(frozen=True)
class DownloadConfig:
    name: tuple[str, ...] = tuple(KNOWN)
    """short names (apps wikipedia gsm8k oasst1 the-stack-smol-xl), OWNER/NAME[:CONFIG], or local folders"""
    output_dir: Path | None = None
    """where the folders go; the data home's datasets/ where not given"""
    max_gb: float = 5.0
    """the most to fetch for one dataset"""
    dry_run: bool = False
    """show the plan and fetch nothing"""


@dataclass(frozen=True)
class Plan:
    """What is known of a dataset before it is fetched."""

    entry: Entry
    licences: tuple[str, ...]
    size: int

    def refusal(self, max_gb: float) -> str:
        """Why it will not be fetched; empty where it will."""
        wrong = [licence for licence in self.licences if licence.lower() not in ALLOWED]
        if not self.entry.row_licences and (wrong or not self.licences):
            return f"licence {', '.join(wrong) or 'not named'} is not on the allow-list"
        if self.size > max_gb * 1e9:
            return f"larger than --max-gb {max_gb:g}"
        return ""


def download(config: DownloadConfig) -> str:
    """Show the plan, then fetch what is allowed."""
    need("datasets", extra="data")
    output = config.output_dir or home() / "datasets"
    plans = [plan(entry_of(name)) for name in config.name]
    lines = [_line(each, each.refusal(config.max_gb)) for each in plans]
    print("\n".join(lines), flush=True)
    wanted = [each for each in plans if not each.refusal(config.max_gb)]
    if config.dry_run:
        return f"nothing was fetched; {len(wanted)} of {len(plans)} would be, into {output}"
    if not wanted:
        raise DataError("none of these may be fetched. Type: rusty data download --dry-run")
    _room(output, sum(each.size for each in wanted))
    made = [fetch(each, output) for each in wanted]
    sources = " ".join(map(str, made))
    return f"{output}\nnext: rusty data corpus --source {sources}"


def entry_of(name: str) -> Entry:
    """A known name, OWNER/NAME[:CONFIG], or a local folder."""
    if name in KNOWN:
        return KNOWN[name]
    repository, _, config = name.partition(":")
    if Path(name).is_dir():
        return Entry(name, Path(name).name)
    if repository.count("/") != 1:
        raise ConfigError(f"{name!a} is not one of {', '.join(KNOWN)}, nor OWNER/NAME, nor a folder")
    return Entry(repository, repository.replace("/", "_").lower(), config or None)


def plan(entry: Entry) -> Plan:
    """Ask for the licence and the size; nothing else travels."""
    hub = need("huggingface_hub", extra="data")
    local = Path(entry.repository)
    try:
        if local.is_dir():
            card = hub.DatasetCard.load(local / "README.md").data if (local / "README.md").is_file() else None
            size = sum(path.stat().st_size for path in local.rglob("*") if path.is_file())
        else:
            info = hub.HfApi().dataset_info(entry.repository, revision=entry.revision, files_metadata=True)
            card = info.card_data or hub.HfApi().dataset_info(entry.repository).card_data
            size = sum(file.size or 0 for file in info.siblings if _belongs(file.rfilename, entry.config))
    except Exception as error:  # the hub's own errors, requests', and OSError share no parent
        raise DataError(f"{entry.repository} could not be asked for: {one_line(error)}") from error
    named = getattr(card, "license", None) or ()
    return Plan(entry, tuple([named] if isinstance(named, str) else named), size)


def fetch(each: Plan, output: Path) -> Path:
    """Fetch one dataset into its folder; a folder that is there already is kept."""
    datasets = need("datasets", extra="data")
    entry, folder = each.entry, output / each.entry.folder
    if (folder / "licence.json").is_file():
        return folder
    draft = folder.with_name(folder.name + ".draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        rows = datasets.load_dataset(entry.repository, entry.config, revision=entry.revision)
    except Exception as error:  # see plan
        raise DataError(f"{entry.repository} could not be fetched: {one_line(error)}") from error
    if entry.row_licences:
        rows = rows.filter(lambda row: row_allowed(row[entry.row_licences]))
    rows.save_to_disk(str(draft))
    facts = {"source": entry.repository, "config": entry.config, "licence": " OR ".join(each.licences)}
    (draft / "licence.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    draft.replace(folder)
    return folder


def row_allowed(licences: Any) -> bool:
    """Whether a row names licences, and all of them are allowed."""
    named: Iterable[str] = [licences] if isinstance(licences, str) else list(licences or ())
    words = [name.lower() for name in named]
    return bool(words) and all(word in ALLOWED for word in words)


def one_line(error: Exception) -> str:
    """An error of a library, short enough for one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:200]


def _belongs(name: str, config: str | None) -> bool:
    return name.endswith((".parquet", ".jsonl", ".json", ".gz", ".zst", ".csv")) and (
        not config or name.startswith(f"{config}/")
    )


def _line(each: Plan, refusal: str) -> str:
    licences = ", ".join(each.licences) or ("by row" if each.entry.row_licences else "not named")
    verdict = refusal or "will be fetched"
    return f"  {each.entry.repository:<32} {each.size / 1e6:>10,.1f} MB  {licences:<20} {verdict}"


def _room(output: Path, size: int) -> None:
    output.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(output).free
    if free < 3 * size:  # the hub's cache, the prepared rows, and the folder we keep
        raise DataError(f"{output} has {free / 1e9:.1f} GB free and about {3 * size / 1e9:.1f} GB are needed")
