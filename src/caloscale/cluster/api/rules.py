"""What the API server checks of a spec beyond types: CEL rules, each with the remedy in its message (rules.yaml).

The messages are those of the parser (`caloscale.spec`), so that users read the same from both; a test holds
the two together.
"""

from collections.abc import Iterator, Mapping
from importlib import resources
from string import Template
from typing import Any, NamedTuple

import yaml

from caloscale.spec.budget import USD_PATTERN
from caloscale.spec.cluster import GRACE_SECONDS
from caloscale.spec.values import MOST_DAYS


class Rule(NamedTuple):
    """A CEL rule of a schema."""

    rule: str
    """What must be true."""
    message: str
    """What a person reads when it is not: problem and remedy."""


_SECONDS = " + ".join(
    f"int('0' + self.find('[0-9]+{unit}').replace('{unit}', '')) * {seconds}"
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
)
DURATION_RULES = [
    Rule(
        "self.matches('^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && self.matches('[1-9]')",
        "is not a duration; remedy: write it as 90s, 10m, 6h, 1h30m or 2d",
    ),
    Rule(  # numbers of more digits than any such time has would be none for int()
        f"!self.matches('[1-9][0-9]{{9}}') && {_SECONDS} <= {MOST_DAYS * 86_400}",
        f"is longer than ten years; remedy: write {MOST_DAYS}d or less",
    ),
]
USD_RULE = Rule(
    f"type(self) == int ? self > 0 : self.matches('{USD_PATTERN}') && self.matches('[1-9]')",
    'is not an amount of US dollars; remedy: write it as 400 or "99.50", with quotation marks where it has cents',
)
_AXES = [f"int(self.topology.split('x')[{axis}])" for axis in range(3)]
_CHIPS = f"(self.topology.split('x').size() == 2 ? {' * '.join(_AXES[:2])} : {' * '.join(_AXES)})"


def _rules_of(entry: Mapping[str, Any]) -> Iterator[Rule]:
    """One rule, or one for each field that is set once: an edit would be ignored, or lose what is stored there."""
    if "rule" in entry:
        yield Rule(entry["rule"], entry["message"])
        return
    changed = f"cannot be changed: {entry['why']}; remedy: make another TrainingRun"
    for name in entry.get("unchanged", ()):
        now, before = f"self.{name}", f"oldSelf.{name}"
        yield Rule(f"has({now}) == has({before}) && (!has({now}) || {now} == {before})", f"{name} {changed}")
    if "once" in entry:  # a text in a block that may be absent
        block, _, field = entry["once"].partition(".")
        texts = (
            f"(has({o}.{block}) && has({o}.{block}.{field}) ? {o}.{block}.{field} : '')" for o in ("self", "oldSelf")
        )
        yield Rule(" == ".join(texts), f"{entry['once']} {changed}")


def _read_rules() -> dict[str, list[Rule]]:
    text = resources.files("caloscale.cluster.api").joinpath("rules.yaml").read_text(encoding="utf-8")
    read = yaml.safe_load(Template(text).substitute(chips=_CHIPS, grace=GRACE_SECONDS))
    return {path: [rule for entry in entries for rule in _rules_of(entry)] for path, entries in read.items()}


RUN_RULES = _read_rules()
"""Rules by dotted path of the spec."""
