"""Name scopes of the step: by them a profile knows what an operation is for.

Each tape runs under a phase, and within it what is not the forward pass under a part. Gradients need no part:
TensorFlow names them "gradient_tape/" and the scopes of their forward pass.
"""

from __future__ import annotations

import re
from typing import Any, Literal, get_args

import tensorflow as tf

Phase = Literal["fakes", "discriminator_real", "discriminator_fake", "generator"]
"""Generated showers for the discriminator; its update on real and on generated ones; updates of the generator."""
Part = Literal["forward", "back_propagation", "all_reduce", "optimizer"]
PHASES: tuple[Phase, ...] = get_args(Phase)
PARTS: tuple[Part, ...] = get_args(Part)

# A point keeps them apart from the names of networks and layers; TensorFlow numbers a scope that is entered again.
_PHASE = re.compile(rf"phase\.({'|'.join(PHASES)})(?:_\d+)?(?:/|$)")
_PART = re.compile(rf"part\.({'|'.join(PARTS)})(?:_\d+)?(?:/|$)")
_GRADIENTS = "gradient_tape/"
_COLLECTIVES = ("Collective", "Nccl", "AllReduce", "CrossReplica")


def phase_scope(phase: Phase) -> Any:
    """A context for the operations of a phase."""
    return tf.name_scope(f"phase.{phase}")


def part_scope(part: Part) -> Any:
    """A context for the operations of a part of a phase."""
    return tf.name_scope(f"part.{part}")


def phase_and_part(name: str, kind: str) -> tuple[Phase | None, Part]:
    """Phase and part of an operation from its name (scopes separated by /) and type; no phase: the rest of a step."""
    phase, part = _PHASE.search(name), _PART.search(name)
    return (phase[1] if phase else None), _part(name, kind, part[1] if part else None)  # type: ignore[return-value]


def _part(name: str, kind: str, scope: str | None) -> str:
    if any(collective in kind for collective in _COLLECTIVES):
        return "all_reduce"
    if scope is not None:
        return scope
    return "back_propagation" if _GRADIENTS in name else "forward"
