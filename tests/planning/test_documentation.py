from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "planning.md"


def test_figures_of_the_page_are_those_of_the_code():
    """Numbers that a change of the catalogue or the model would make wrong."""
    from caloscale.planning.catalogue.hardware import load_networks
    from caloscale.planning.catalogue.measurements import load_measurements
    from caloscale.planning.step_time.throughput import fit_steps

    text = PAGE.read_text(encoding="utf-8")
    network = load_networks()["variable-angle"]
    measured = load_measurements()
    v100 = [m for m in measured if (m.provider, m.accelerator) == ("gcp", "nvidia-tesla-v100")]
    assert f"{len(v100)} runs of the 3DGAN on V100 at GKE" in text
    assert f"{sum(m.provider == 'azure' for m in measured)} on V100 at Azure ML" in text
    assert f"residual scatter ({fit_steps(v100, network).scatter:.1%} on V100 at GKE)" in text
