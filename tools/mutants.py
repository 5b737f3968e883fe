"""Mutation tests of the parts that decide: mutmut changes the source, and a test has to fail.

    python -m tools.mutants PART [--sample N] [--seed N] [--processes N]

Sources and tests of each part, and what is not changed, are in pyproject.toml. The work is done in a copy of the tree,
build/mutants/PART. Each mutant is tested in a fork of one process that has imported the tests, by those that reach its
function. A run that was interrupted resumes. After a change, mutants of the changed functions are tested again, and
those that survived if a test has changed.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import io
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from resource import RLIMIT_CPU, setrlimit
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parent.parent
SEED = 34
AT_IMPORT = ("__get_pydantic_core_schema__", "_check_of", "_constructor", "_refuse_other_kinds")
"""Functions that are called while modules are imported, when no mutant is chosen yet: no test reaches it."""
KILLED = ("killed", "timeout", "segfault")
NO_TESTS, TIMEOUT = 33, 36
"""Exit codes as mutmut has them."""
REACHED = Path("mutants/reached.json")


def main() -> None:
    """Test the mutants of a part; print the survivors and the score."""
    parts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutants"]
    parser = argparse.ArgumentParser(description="Mutation tests of a part")
    parser.add_argument("part", choices=parts)
    parser.add_argument("--sample", type=int, help="test this many mutants")
    parser.add_argument("--seed", type=int, default=SEED, help="of the choice of the sample")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    part = parts[options.part]
    copy = ROOT / "build" / "mutants" / options.part
    changed = _copy_tree(copy, part)
    os.chdir(copy)  # mutmut reads its settings here
    if changed:
        REACHED.unlink(missing_ok=True)
    if any(name.startswith("tests/") for name in changed):
        _forget_survivors()
    _generate(options.processes)
    results = _results()
    mutants = sorted(results)
    if options.sample and options.sample < len(mutants):
        mutants = sorted(random.Random(options.seed).sample(mutants, options.sample))  # noqa: S311
    pending = [name for name in mutants if results[name] == "not checked"]
    if pending:
        _test(pending, part["tests"], options.processes)
    _print(options.part, mutants, total=len(results))


class Running(NamedTuple):
    """A fork that tests a mutant."""

    mutant: str
    process: int
    until: float
    """When it hangs, s."""


def _test(mutants: list[str], selection: list[str], processes: int) -> None:
    """Test mutants and keep the results."""
    sources = Path("mutants/src").resolve()
    sys.path[:0] = [str(sources), str(Path.cwd())]
    os.environ |= {"MUTANT_UNDER_TEST": "", "PYTHONPATH": str(sources)}
    import pytest

    with tempfile.TemporaryDirectory() as folder:
        pytest.main(["--capture=no", *selection], plugins=[Forks(mutants, processes, folder)])


class Forks:
    """A plugin of pytest that runs the collected tests for each mutant in a fork."""

    def __init__(self, mutants: list[str], processes: int, folder: str) -> None:
        self._pending, self._processes, self._folder = mutants[::-1], processes, folder
        self._reached: dict[str, dict[str, float]] = defaultdict(dict)
        """For each function the tests that reach it, and how long they take, s."""
        self._hits: set[str] = set()
        self._begun = 0.0

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of running the tests once."""
        if not REACHED.exists() and os.waitpid(self._fork(lambda: self._note(session)), 0)[1]:
            sys.exit("a test fails without any mutant")
        reached: dict[str, dict[str, float]] = json.loads(REACHED.read_text(encoding="utf-8"))
        running: dict[int, Running] = {}
        while self._pending or running:
            while self._pending and len(running) < self._processes:
                mutant = self._pending.pop()
                tests = reached.get(mutant.rpartition("__mutmut_")[0], {})
                if not tests:
                    _keep(mutant, NO_TESTS)
                    continue
                seconds = sum(tests.values())
                process = self._fork(lambda: self._try(session, mutant, tests), limit=int(10 + 20 * seconds))  # noqa: B023
                running[os.pidfd_open(process)] = Running(mutant, process, time.monotonic() + 60 + 60 * seconds)
            ended, _, _ = select.select(list(running), [], [], 1.0)
            for handle, one in list(running.items()):
                late = handle not in ended and time.monotonic() > one.until
                if late:
                    os.kill(one.process, signal.SIGKILL)
                if late or handle in ended:
                    code = os.waitstatus_to_exitcode(os.waitpid(one.process, 0)[1])
                    _keep(one.mutant, TIMEOUT if late else code)
                    os.close(handle)
                    del running[handle]
        return True

    def _fork(self, call: Callable[[], int], limit: int | None = None) -> int:
        """A process that ends with the exit code of the call, or after so many seconds of processor time."""
        sys.stdout.flush()
        process = os.fork()
        if not process:
            code = 1
            try:
                folder = Path(self._folder, str(os.getpid()))
                folder.mkdir()
                os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
                if limit is not None:
                    setrlimit(RLIMIT_CPU, (limit, limit + 5))
                    for descriptor in range(3):
                        os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
                code = call()
            finally:
                os._exit(code)
        return process

    def _try(self, session: pytest.Session, mutant: str, tests: dict[str, float]) -> int:
        """Whether a test fails, files that take little time first."""
        from mutmut.mutation import trampoline

        os.environ["MUTANT_UNDER_TEST"] = mutant
        trampoline.__dict__["get_mutant_under_test"] = lambda: mutant  # quicker than the environment
        items = [item for item in session.items if item.nodeid in tests]
        seconds: Counter[Path] = Counter()
        for item in items:
            seconds[item.path] += tests[item.nodeid]  # type: ignore[assignment]
        return self._run(session, sorted(items, key=lambda item: (seconds[item.path], item.path)))

    def _run(self, session: pytest.Session, items: list[pytest.Item]) -> int:
        """1: a test failed, after which no other one is run."""
        for item, following in zip(items, [*items[1:], None]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                return 1
        return 0

    def _note(self, session: pytest.Session) -> int:
        """Note which tests reach which functions; all of them have to pass without a mutant."""
        from mutmut.mutation import trampoline

        hits = {
            "record_trampoline_hit": lambda name, **_: self._hits.add(name),
            "get_mutant_under_test": lambda: "stats",
        }
        trampoline.__dict__.update(hits)
        code = self._run(session, session.items)
        if not code:
            REACHED.write_text(json.dumps(self._reached), encoding="utf-8")
        return code

    def pytest_runtest_logstart(self) -> None:
        """A test begins."""
        self._hits, self._begun = set(), time.process_time()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A part of it has ended."""
        if report.failed:
            print(report.longreprtext)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """It ends."""
        for name in self._hits:
            self._reached[name][nodeid] = time.process_time() - self._begun


def _keep(mutant: str, code: int) -> None:
    for data in _data():
        if mutant in data.exit_code_by_key:
            data.exit_code_by_key[mutant] = code
            data.save()


def _copy_tree(copy: Path, part: dict[str, list[str]]) -> set[str]:
    """Copy what differs; returns the names of these files."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\n")  # fmt: skip
    files = {name for name in listed if name and (ROOT / name).is_file()}
    changed = set()
    for name in sorted(files - {"pyproject.toml"}):
        if not (copy / name).is_file() or not filecmp.cmp(ROOT / name, copy / name, shallow=False):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
            changed.add(name)
    gone = {
        str(p.relative_to(copy)) for top in ("src", "tests") for p in (copy / top).rglob("*") if p.is_file()
    } - files
    for name in changed | gone:
        if not name.endswith(".py") or name in gone:
            (copy / "mutants" / name).unlink(missing_ok=True)  # mutmut copies it anew
    for name in gone:
        (copy / name).unlink()
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    chosen = f"[tool.mutmut]\nonly_mutate = {json.dumps(part['sources'])}\n"
    settings, file = settings.replace("[tool.mutmut]\n", chosen), copy / "pyproject.toml"
    if not file.is_file() or file.read_text(encoding="utf-8") != settings:
        file.write_text(settings, encoding="utf-8")
        changed.add("tests/")  # perhaps others are chosen
    return changed | gone


def _forget_survivors() -> None:
    from mutmut.stats import status_by_exit_code

    for path in Path("mutants/src").rglob("*.meta"):
        meta = json.loads(path.read_text(encoding="utf-8"))
        codes = meta["exit_code_by_key"]
        meta["exit_code_by_key"] = {k: v if status_by_exit_code[v] in KILLED else None for k, v in codes.items()}
        path.write_text(json.dumps(meta), encoding="utf-8")


def _generate(processes: int) -> None:
    from mutmut.__main__ import copy_src_dir, create_mutants
    from mutmut.mutation.file_mutation import NEVER_MUTATE_FUNCTION_NAMES
    from mutmut.utils.file_utils import walk_mutatable_files

    NEVER_MUTATE_FUNCTION_NAMES.update(AT_IMPORT)
    begun = Path("generating")
    for path in walk_mutatable_files() if begun.exists() else ():  # it was interrupted: some are not whole
        (Path("mutants") / path).unlink(missing_ok=True)
    begun.touch()
    with contextlib.redirect_stdout(io.StringIO()):
        copy_src_dir()
        create_mutants(processes)
    begun.unlink()


def _data() -> Iterator[Any]:
    """What mutmut keeps of the mutants of each file."""
    from mutmut.mutation.data import SourceFileMutationData
    from mutmut.utils.file_utils import walk_mutatable_files

    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        yield data


def _results() -> dict[str, str]:
    """Mutants and their states."""
    from mutmut.stats import status_by_exit_code

    return {name: status_by_exit_code[code] for data in _data() for name, code in data.exit_code_by_key.items()}


def _print(part: str, mutants: list[str], total: int) -> None:
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from scipy.stats import binomtest

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
