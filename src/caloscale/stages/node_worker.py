"""A worker that `train_on_this_node` starts: TF_CONFIG is in its environment, its order in its argument as JSON."""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from caloscale.errors import CaloscaleError, Terminated
from caloscale.spec import load_run
from caloscale.storage.atomic import write_text
from caloscale.tensorflow_import import load_tensorflow_quietly
from caloscale.termination import ended_by_sigterm
from caloscale.training.processor import set_processor


def work(order: dict[str, Any]) -> None:
    """Train as one of the workers; the cores are chosen before TensorFlow starts its threads."""
    if order["cores"]:
        os.sched_setaffinity(0, order["cores"])
    run = load_run(order["configuration"])
    set_processor(run, os.environ)
    load_tensorflow_quietly()
    from caloscale.training.loop import train

    record = train(run, Path(order["dataset"]), Path(order["output"]))
    if order["result"] is not None:
        write_text(order["result"], record.model_dump_json(by_alias=True))


def main() -> NoReturn:
    """End at once with the exit code: TensorFlow may wait for workers that are gone."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("caloscale").setLevel(logging.INFO)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    code = 0
    try:
        with ended_by_sigterm():
            work(json.loads(sys.argv[1]))
    except CaloscaleError as error:
        print(f"error: {error}", file=sys.stderr)
        code = error.exit_code
    except Terminated as end:
        code = end.exit_code
    except KeyboardInterrupt:
        code = 130
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
