"""A Kubernetes control plane on one machine, without containers, for tests and for trying the operator.

``python -m tools.cluster build`` builds its programs once; ``with ControlPlane() as plane:`` starts it. Nodes and pods
are fake: the scheduler, the controllers and the upstream operators are real, what runs in a pod is not.
"""

from tools.cluster.errors import ClusterError
from tools.cluster.plane import ControlPlane
from tools.cluster.pools import Pool
from tools.cluster.programs import is_built

__all__ = ["ClusterError", "ControlPlane", "Pool", "is_built"]
