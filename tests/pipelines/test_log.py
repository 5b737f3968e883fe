"""What is shown of a pipeline's log and what is only kept."""

import io

from pipelines.log import PipelineLog

LOG = """12:00:00.000 - INFO - Executing task \x1b[96m'train'\x1b[0m
12:00:00.001 - INFO - Streamed logs:

    [KFP Executor 2026-01-01 INFO]: Got executor_input:
    {
        "inputs": {
            "a": "secret"
        }
    }
    train:  10%|#   | 1/10 [00:05<00:45, 2 showers/s]
    I0000 00:00:1795265652.687861   28716 tf_record_dataset_op.cc:390] TFRecordDataset
    Traceback (most recent call last):
      File "x.py", line 1, in <module>
    caloscale.errors.ShowerFileError: a.h5: is torn

12:00:09.000 - ERROR - Task 'train' finished with status FAILURE
12:00:09.000 - INFO - Task 'other' outputs:
    report: HTML( name='report' )
--------------------------------------------------------------------------------
12:00:10.000 - INFO - Pipeline finished
"""


def test_steps_are_shown_and_noise_is_kept() -> None:
    shown, kept = io.StringIO(), io.StringIO()
    log = PipelineLog(shown, kept)
    for start in range(0, len(LOG), 7):  # text comes in pieces
        log.write(LOG[start : start + 7])
    assert kept.getvalue() == LOG
    assert shown.getvalue().splitlines() == [
        "12:00:00.000 - INFO - Executing task \x1b[96m'train'\x1b[0m",
        "train:  10%|#   | 1/10 [00:05<00:45, 2 showers/s]",
        "12:00:09.000 - ERROR - Task 'train' finished with status FAILURE",
        "12:00:10.000 - INFO - Pipeline finished",
    ]
