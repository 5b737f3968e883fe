"""Name scopes of the step: by them a profile knows what an operation is for.

A family names the phases of its step. Within a phase, what is not the forward pass has a part. Gradients need no part:
TensorFlow names them "gradient_tape/" and the scopes of their forward pass.
"""

import re
from contextlib import AbstractContextManager
from typing import Literal, get_args

import tensorflow as tf

Part = Literal["forward", "back_propagation", "all_reduce", "optimizer"]
PARTS: tuple[Part, ...] = get_args(Part)

# A point keeps them apart from the names of networks and layers; TensorFlow numbers a scope that is entered again.
_PHASE = re.compile(r"phase\.([a-z_]+?)(?:_\d+)?(?:/|$)")
_PART = re.compile(rf"part\.({'|'.join(PARTS)})(?:_\d+)?(?:/|$)")
_GRADIENTS = "gradient_tape/"
_COLLECTIVES = ("Collective", "Nccl", "AllReduce", "CrossReplica")


def phase_scope(phase: str) -> AbstractContextManager[str]:
    """A context for the operations of a phase: small letters and underscores."""
    return tf.name_scope(f"phase.{phase}")


def part_scope(part: Part) -> AbstractContextManager[str]:
    """A context for the operations of a part of a phase."""
    return tf.name_scope(f"part.{part}")


def phase_and_part(name: str, kind: str) -> tuple[str | None, Part]:
    """Phase and part of an operation from its name (scopes separated by /) and type; no phase: the rest of a step."""
    phase, scope = _PHASE.search(name), _PART.search(name)
    part = scope[1] if scope else "back_propagation" if _GRADIENTS in name else "forward"
    if any(collective in kind for collective in _COLLECTIVES):
        part = "all_reduce"
    return (phase[1] if phase else None), part  # type: ignore[return-value]
