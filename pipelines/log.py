"""What a person sees of a pipeline that runs on this machine; all of it goes into a file."""

import io
import re
from typing import TextIO

_COLOURS = re.compile(r"\x1b\[\d+m")
_OF_TENSORFLOW = re.compile(r"\s*[IWE]\d{4} \d\d:\d\d:")
_STARTS_HIDDEN = ("Traceback (most recent call last)", "Got executor_input:")
_NEVER_SHOWN = ("[KFP Executor", "UserWarning", "Streamed logs:", "warnings.warn(", "-----")


class PipelineLog(io.TextIOBase):
    """A stream that writes everything to a file and shows lines of the steps and their beginnings and ends.

    The runner prints each step's whole input as JSON, its outputs, and tracebacks; a person looks these up in the
    file when there is need.
    """

    def __init__(self, shown: TextIO, kept: TextIO) -> None:
        self._shown, self._kept = shown, kept
        self._line, self._hidden = "", False

    def write(self, text: str) -> int:
        """Take text as it comes; decide by line."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._kept.write(line + "\n")
            if self._is_shown(_COLOURS.sub("", line)):
                self._shown.write(line.removeprefix("    ") + "\n")
                self._shown.flush()
        return len(text)

    def flush(self) -> None:
        """Flush both streams."""
        self._shown.flush()
        self._kept.flush()

    def isatty(self) -> bool:
        """Whether a person looks on."""
        return self._shown.isatty()

    def _is_shown(self, line: str) -> bool:
        if _OF_TENSORFLOW.match(line):
            return False
        of_step = line.startswith("    ") or not line.strip()
        if not of_step:
            self._hidden = line.endswith("outputs:")
            return not self._hidden and not any(word in line for word in _NEVER_SHOWN)
        if any(word in line for word in _STARTS_HIDDEN):
            self._hidden = True
        elif self._hidden and line == "    }":
            self._hidden = False
            return False
        return not self._hidden and bool(line.strip()) and not any(word in line for word in _NEVER_SHOWN)
