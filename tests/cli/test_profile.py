"""caloscale profile, as its user sees it."""


def test_a_run_has_a_profile_by_phase_alone(command, tmp_path):
    done = command("profile", str(tmp_path), "--by", "layer")
    assert done.code == 2 and "by phase alone" in done.err and "run.yaml" in done.err


def test_rows_that_are_not_there_are_refused(command):
    done = command("profile", "--by", "kernel")
    assert done.code == 2 and "layer" in done.err
