"""Predicted and observed equivalent numbers of trained generators, from comparisons that `tools.angle_target` kept.

    python -m tools.amplification runs/bench/compact-A-10000.json runs/bench/compact-B-10000.json ...

The files are of networks that differ in the seed of the training alone. `caloscale amplification` generates and
compares itself; here nothing is generated. A kept uncertainty is that of both samples, of equal size: half of the
variance is the generated sample's, half Monte Carlo's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from caloscale.physics.amplification import of_deviation, of_scatter
from tools.benchmark_runs import table
from tools.compact_ablation import COLUMNS, SHOWERS

QUANTITIES = ("response", "responseSpread", "depthSpread", "transverseWidth x", "transverseWidth y", "hits")


def rows_of(files: Sequence[Path]) -> list[list[str]]:
    """A row for each quantity: deviations in per cent, predicted n, observed n, and their ratio."""
    comparisons = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    rows = []
    for name in QUANTITIES:
        deviations = np.array([100 * (one[name]["value"] - 1) for one in comparisons])
        sampling = np.array([100 * one[name]["uncertainty"] for one in comparisons]) / np.sqrt(2)
        per_shower = float(np.sqrt(np.mean(sampling**2) * SHOWERS))
        predicted = of_scatter(deviations, sampling, per_shower)
        observed = of_deviation(deviations, np.sqrt(2) * sampling, per_shower)
        ratio = f"{predicted.value / observed.value:.2f}" if predicted.value and observed.value else "no ratio"
        values = ", ".join(f"{value:+.2f}" for value in deviations)
        rows.append([COLUMNS[name], values, str(predicted), str(observed), ratio])
    return rows


def main(arguments: Sequence[str]) -> int:
    """Print the table."""
    columns = ["quantity", "deviations, %", "n predicted", "n observed", "predicted / observed"]
    print(table(columns, rows_of([Path(file) for file in arguments])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
