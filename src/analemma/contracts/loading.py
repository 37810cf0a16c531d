"""Loads contracts from files, directories and data: everything is checked, and everything wrong is told at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from analemma.canon.canonical_json import canonical_json
from analemma.contracts.building import build
from analemma.contracts.checking import check_contract
from analemma.contracts.contract_set import ContractSet
from analemma.contracts.json_reading import read_json
from analemma.contracts.linking import Entry, Linker, Unread
from analemma.contracts.located import Located, locate
from analemma.contracts.models import Contract, Origin, SinkRule, Status
from analemma.contracts.problems import ContractProblems, Problem, in_order
from analemma.contracts.reporting import Place, Reporter
from analemma.contracts.shapes import read_shape
from analemma.contracts.yaml_reading import read_yaml
from analemma.errors import Invalid

MAXIMUM_FILE_BYTES: Final = 512 * 1024
MAXIMUM_FILES: Final = 1000
SUFFIXES: Final = (".yaml", ".yml", ".json")

Source = str | Path | Mapping[str, Any] | Iterable[Mapping[str, Any]]
"""A file, a directory, one contract as data, or several."""
CheckTarget = Callable[[Mapping[str, Any]], Iterable[tuple[Place, str, str | None]]]
"""What is wrong with the target of a sink rule: where, why, and what to do about it."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of contracts: a set to use, or what is wrong with them."""

    contracts: ContractSet | None
    """None if there are problems."""
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    files: tuple[str, ...]
    documents: int


def load_contracts(
    *sources: Source,
    previous: ContractSet | None = None,
    beside: ContractSet | None = None,
    check_target: CheckTarget | None = None,
) -> ContractSet:
    """Load contracts that belong together; ContractProblems lists everything that is wrong.

    `previous`: the contracts in use. What was published keeps its content, and nothing new binds what is deprecated.
    `beside`: contracts that stay in use beside these, and belong to the answer; one that is also in a source is the
    source's. `check_target` says what is wrong with the target of a sink rule.
    """
    checked = check_contracts(*sources, previous=previous, beside=beside, check_target=check_target)
    if checked.contracts is None:
        raise ContractProblems(checked.problems)
    return checked.contracts


def check_contracts(
    *sources: Source,
    previous: ContractSet | None = None,
    beside: ContractSet | None = None,
    check_target: CheckTarget | None = None,
) -> Checked:
    """The same without raising."""
    problems: list[Problem] = []
    files: list[str] = []
    reporters: list[Reporter] = []
    for source in sources:
        for file, document in _read(source, files, problems):
            reporters.append(Reporter(file, document))
    unread = Unread(not problems)
    entries: list[Entry] = []
    for reporter in reporters:
        entry = _build(reporter)
        if entry is None:
            unread = unread.with_document(reporter.node.value)
        else:
            entries.append(entry)
            check_contract(entry.contract, entry.reporter)
            if check_target is not None:
                _check_target(entry, check_target)
    kept = _entries_beside(beside, entries)
    # Those beside come first: what does not go together is then told of the contract that came later.
    linker = Linker([*kept, *entries], previous, unread)
    linker.check()
    odd = [each for entry in entries for each in entry.links.warnings]
    for entry in (*kept, *entries):
        # What does not apply builds nothing: it may lack what the version in its place does without.
        (problems if entry.contract.ref in linker.applying else odd).extend(entry.links.problems)
    problems += [each for entry in kept for each in entry.reporter.problems]
    found = in_order([*problems, *(each for reporter in reporters for each in reporter.problems)])
    if not reporters and not found:
        found = (Problem(", ".join(files) or "contracts", None, "there are no contracts"),)
    warnings = in_order([*odd, *(each for reporter in reporters for each in reporter.warnings)])
    everything = tuple(entry.contract for entry in (*kept, *entries))
    contracts = None if found else ContractSet(everything, warnings)
    return Checked(contracts, found, warnings, tuple(files), len(reporters))


def restore_contracts(documents: Iterable[Mapping[str, Any]], source: str) -> ContractSet:
    """Contracts that were checked before they were kept in `source`: built again, without asking how they go
    together."""
    reporters = [Reporter(source, locate(dict(document))) for document in documents]
    entries = [_build(reporter) for reporter in reporters]
    problems = [problem for reporter in reporters for problem in reporter.problems]
    if problems:
        raise ContractProblems(problems)
    return ContractSet(tuple(entry.contract for entry in entries if entry is not None))


def _check_target(entry: Entry, check_target: CheckTarget) -> None:
    """Of a rule that ships, or is to. One that was loaded long ago and never could can still be retired."""
    rule = entry.contract
    if isinstance(rule, SinkRule) and rule.status in (Status.DRAFT, Status.ACTIVE):
        for place, reason, hint in check_target({**rule.target, "type": rule.target_type}):
            entry.links.at(("target", *place), f"the target of {rule.ref}: {reason}", hint)


def _entries_beside(beside: ContractSet | None, entries: Iterable[Entry]) -> list[Entry]:
    named = {entry.contract.ref for entry in entries}
    staying = () if beside is None else beside.contracts
    return [
        _entry(each, Reporter(f"{each.origin}, {each.ref}", locate(each.document)), stays=True)
        for each in staying
        if each.ref not in named
    ]


def _entry(contract: Contract, reporter: Reporter, *, stays: bool = False) -> Entry:
    return Entry(contract, reporter, Reporter(reporter.file, reporter.node), stays)


def _build(reporter: Reporter) -> Entry | None:
    shape = read_shape(reporter)
    if shape is None:
        return None
    plain = reporter.node.value
    # Of what is left of a document, places are counted as they are in that.
    told = Reporter(reporter.file, shape.node, reporter.problems, reporter.warnings)
    contract = build(shape.document, plain, Origin(reporter.file, reporter.node.line), told)
    return _entry(replace(contract, lacks=shape.lacks) if shape.lacks else contract, told)


def _read(source: Source, files: list[str], problems: list[Problem]) -> Iterator[tuple[str, Located]]:
    if isinstance(source, str | Path):
        for file in _files_of(Path(source), problems):
            files.append(str(file))
            for document in _read_file(file, problems):
                yield str(file), document
        return
    for number, data in enumerate([source] if isinstance(source, Mapping) else source, 1):
        name = f"contract {number}"
        try:
            # Only JSON can be a contract; and the caller's own data may change later.
            canonical_json(data)
        except Invalid as exc:
            problems.append(Problem(name, None, exc.message, exc.hint))
        else:
            yield name, locate(copy.deepcopy(data))


def _files_of(path: Path, problems: list[Problem]) -> list[Path]:
    try:
        if not path.is_dir():
            return [path]
        found = sorted(
            file
            for file in path.rglob("*")
            if file.suffix.lower() in SUFFIXES
            and file.is_file()
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
        )
    except (OSError, ValueError) as exc:
        problems.append(Problem(str(path), None, f"cannot be read: {exc}"))
        return []
    if not found:
        problems.append(Problem(str(path), None, "has no contract files", f"they end in {', '.join(SUFFIXES)}"))
    if len(found) > MAXIMUM_FILES:
        problems.append(Problem(str(path), None, f"has {len(found)} contract files", f"the limit is {MAXIMUM_FILES}"))
        return []
    return found


def _read_file(file: Path, problems: list[Problem]) -> list[Located]:
    name = str(file)

    def report(line: int | None, reason: str, hint: str | None) -> None:
        problems.append(Problem(name, line, reason, hint))

    try:
        if not file.is_file():
            report(None, "is no file" if file.exists() else "does not exist", None)
            return []
        if file.stat().st_size > MAXIMUM_FILE_BYTES:
            report(None, f"is larger than {MAXIMUM_FILE_BYTES // 1024} KiB", "split it")
            return []
        data = file.read_bytes()
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        report(data[: exc.start].count(b"\n") + 1, "is not UTF-8", None)
        return []
    except (OSError, ValueError) as exc:
        report(None, f"cannot be read: {exc}", None)
        return []
    if file.suffix.lower() == ".json":
        try:
            document = read_json(text.encode())
        except Invalid as exc:
            report(exc.facts.get("line", 1), exc.message, exc.hint)
            return []
        return list(document.parts.values()) if type(document.value) is list else [document]
    return [each for each in read_yaml(text, report) if each.value is not None]
