from caloscale.api import bill as bill
from caloscale.api import evaluate as evaluate
from caloscale.api import plan as plan
from caloscale.api import read_showers as read_showers
from caloscale.api import run as run
from caloscale.api import simulate as simulate
from caloscale.api import train as train
from caloscale.api import validate as validate
from caloscale.inference.generator import Generator as Generator
from caloscale.physics.result import Evaluation as Evaluation
from caloscale.showers.arrays import Showers as Showers
from caloscale.showers.files import write_showers as write_showers
from caloscale.spec import Run as Run
from caloscale.spec import load_run as load_run

__version__: str
IMAGE: str
SOLVER_IMAGE: str
