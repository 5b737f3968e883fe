"""What a model folder says of itself."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from caloscale.errors import CheckpointError
from caloscale.models.card import CARD, ModelCard

REJECTED = "REJECTED.md"
"""What a validation leaves in place of a model that it rejected."""
VERDICT = "verdict.json"
"""What a validation decided about the model in the same folder."""


def read_card(folder: Path) -> ModelCard:
    """What a model folder says of itself. Raises CheckpointError."""
    path, remedy = folder / CARD, "give the folder `model` of a training"
    try:
        return ModelCard.model_validate_json(path.read_bytes(), by_alias=True, by_name=False)
    except OSError as error:
        if (folder / REJECTED).is_file():
            remedy = f"its validation rejected it, {REJECTED} says why; the model is in `training/model` of the run"
        raise CheckpointError(f"cannot be read: {error.strerror}", file=path, remedy=remedy) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or None
        raise CheckpointError(f"is not a model card: {first['msg']}", file=path, field=field, remedy=remedy) from error
