"""Mutation tests of the parts that decide: mutmut changes the source, and a test has to fail.

    python -m tools.mutants PART [--sample N] [--seed N] [--processes N]

Sources and tests of each part, and what is not changed, are in pyproject.toml. mutmut runs in a copy of the tree,
build/mutants. A run that was interrupted resumes until a file of the tree changes.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

from scipy.stats import binomtest

ROOT = Path(__file__).resolve().parent.parent
SEED = 34
AT_IMPORT = ("__get_pydantic_core_schema__", "_check_of", "_constructor", "_refuse_other_kinds")
"""Functions that are called while modules are imported, when mutmut has not chosen a mutant yet: no test reaches it."""
GENERATED = Path("generated")
"""In the copy, once its mutants are written."""
KILLED = ("killed", "timeout", "segfault")


def main() -> None:
    """Test the mutants of a part; print the score and the survivors."""
    parts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutants"]
    parser = argparse.ArgumentParser(description="Mutation tests of a part")
    parser.add_argument("part", choices=parts)
    parser.add_argument("--sample", type=int, help="test this many mutants")
    parser.add_argument("--seed", type=int, default=SEED, help="of the choice of the sample")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    os.chdir(_copied_tree(parts[options.part]))  # mutmut reads its settings here
    if not GENERATED.exists():
        _generate(options.processes)
    results = _results()
    mutants = sorted(results)
    if options.sample and options.sample < len(mutants):
        mutants = sorted(random.Random(options.seed).sample(mutants, options.sample))  # noqa: S311
    pending = [name for name in mutants if results[name] == "not checked"]
    if pending:
        chosen = pending if len(mutants) < len(results) else []
        mutmut = [str(Path(sys.executable).with_name("mutmut")), "run", "--max-children", str(options.processes)]
        subprocess.run([*mutmut, *chosen], check=True)
    _print(options.part, mutants, total=len(results))


def _copied_tree(part: dict[str, list[str]]) -> Path:
    """A copy of the tree with the settings of a part, in a folder that is named by its content."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    files = [name for name in sorted(listed) if (ROOT / name).is_file()]
    selection = {"only_mutate": part["sources"], "pytest_add_cli_args_test_selection": part["tests"]}
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in selection.items())
    digest = hashlib.sha256(lines.encode() + b"".join(name.encode() + (ROOT / name).read_bytes() for name in files))
    copy = ROOT / "build" / "mutants" / digest.hexdigest()[:12]
    if not (copy / GENERATED).exists():
        shutil.rmtree(copy, ignore_errors=True)
        for name in files:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
        settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        settings = settings.replace("[tool.mutmut]\n", f"[tool.mutmut]\n{lines}")
        (copy / "pyproject.toml").write_text(settings, encoding="utf-8")
    return copy


def _generate(processes: int) -> None:
    from mutmut.__main__ import create_mutants
    from mutmut.mutation.file_mutation import NEVER_MUTATE_FUNCTION_NAMES
    from mutmut.utils.file_utils import copy_src_dir

    NEVER_MUTATE_FUNCTION_NAMES.update(AT_IMPORT)
    with contextlib.redirect_stdout(io.StringIO()):
        copy_src_dir()
        create_mutants(processes)
    GENERATED.touch()


def _results() -> dict[str, str]:
    """Mutants and their states."""
    from mutmut.mutation.data import SourceFileMutationData
    from mutmut.stats import status_by_exit_code
    from mutmut.utils.file_utils import walk_mutatable_files

    results = {}
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        results.update({name: status_by_exit_code[code] for name, code in data.exit_code_by_key.items()})
    return results


def _print(part: str, mutants: list[str], total: int) -> None:
    from mutmut.mutation.diff_apply import get_diff_for_mutant

    results = _results()
    for name in mutants:
        if results[name] not in KILLED:
            diff = get_diff_for_mutant(name).splitlines()
            changes = [line for line in diff if line.startswith(("-", "+")) and not line.startswith(("---", "+++"))]
            print(f"{results[name]}: {name}", *changes, sep="\n    ")
    states = Counter(results[name] for name in mutants)
    killed = sum(states[state] for state in KILLED)
    counts = ", ".join(f"{count} {state}" for state, count in states.most_common())
    print(f"{part}: {killed} of {len(mutants)} mutants killed ({counts}), score {killed / len(mutants):.1%}", end="")
    if len(mutants) < total:
        interval = binomtest(killed, len(mutants)).proportion_ci(method="wilson")
        print(f"; sample of {total}, 95% interval {interval.low:.1%} to {interval.high:.1%}", end="")
    print()


if __name__ == "__main__":
    main()
