from caloscale.api import evaluate as evaluate
from caloscale.api import load_run as load_run
from caloscale.api import plan as plan
from caloscale.api import read_showers as read_showers
from caloscale.inference.generator import Generator as Generator

__version__: str
IMAGE: str
SOLVER_IMAGE: str
